"""The schedule: a pure function from a plan to what each group does, in order.

The simulator and the runtime execute the same actions. One iteration of AFD (two groups, two
microbatches ``a`` and ``b``) over two layers, time running right::

    group 0   run 0a  run 0b          run 2a  run 2b
    group 1           run 1a  run 1b          run 3a  run 3b

Order inside a group is stage-major: for each stage occurrence in model order, microbatch
0..μ-1; then the next iteration. Boundary ``i`` follows occurrence ``i``; the last boundary leads
back to occurrence 0 and carries the sampled token ids.
"""

from __future__ import annotations

from dataclasses import dataclass

from weavejax.models.config import ModelConfig
from weavejax.models.sequence import check_heads, operator_sequence
from weavejax.models.specs import OperatorSpec, TensorSpec
from weavejax.plan import DeviceGroup, Plan, PlanError, Template


@dataclass(frozen=True, kw_only=True)
class StageOccurrence:
    """Contiguous operators of the model between two cuts, and the group that runs them."""

    index: int
    position: int
    """Stage position in the template; operators before the first block belong to the last."""
    owner: int
    start: int
    stop: int
    """Layer operators ``start <= i < stop`` of 4 * layers; embed and head are not counted."""
    embed: bool
    head: bool


@dataclass(frozen=True)
class Receive:
    """Take what crosses a boundary."""

    boundary: int
    microbatch: int


@dataclass(frozen=True)
class Run:
    """Compute one stage occurrence for one microbatch."""

    stage: int
    """Stage occurrence."""
    microbatch: int


@dataclass(frozen=True)
class Send:
    """Give what crosses a boundary."""

    boundary: int
    microbatch: int


Action = Receive | Run | Send


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Everything the simulator and the runtime need to know of one decode iteration."""

    occurrences: tuple[StageOccurrence, ...]
    operators: tuple[tuple[OperatorSpec, ...], ...]
    """Operators of each occurrence, embed and head included."""
    interfaces: tuple[tuple[TensorSpec, ...], ...]
    """Tensors that cross the boundary after each occurrence; empty inside one group."""
    actions: tuple[tuple[int, Action], ...]
    """(group, action) of one iteration, stage-major over all groups."""
    microbatches: int

    def group_actions(self, group: int) -> tuple[Action, ...]:
        """The ordered actions of one group in one iteration."""
        return tuple(action for owner, action in self.actions if owner == group)

    @property
    def owners(self) -> tuple[int, ...]:
        return tuple(occurrence.owner for occurrence in self.occurrences)


def build_schedule(plan: Plan, config: ModelConfig) -> Schedule:
    """Plan to actions.

    Args:
        plan: a valid plan.
        config: the model it is for.

    Raises:
        PlanError: the plan does not fit the model (see :func:`check_plan`).

    Examples:
        >>> from weavejax.models import preset_config
        >>> from weavejax.plan import DeviceGroup, ModelRef, Template, Workload
        >>> config = preset_config("smollm2-135m-instruct")
        >>> plan = Plan(
        ...     model=ModelRef(name=config.name, digest=config.digest, config=config.to_dict()),
        ...     workload=Workload(context=128),
        ...     template=Template(cuts=(3,)),
        ...     groups=(DeviceGroup(device="cpu", resident_batch=4),) * 2,
        ... )
        >>> build_schedule(plan, config).group_actions(0)[:2]
        (Receive(boundary=59, microbatch=0), Run(stage=0, microbatch=0))
    """
    check_plan(plan, config)
    operators = operator_sequence(config)
    occurrences = stage_occurrences(plan.template, config.num_layers, len(plan.groups))
    stages = tuple(occurrence_operators(operators, occurrence) for occurrence in occurrences)
    return Schedule(
        occurrences=occurrences,
        operators=stages,
        interfaces=boundary_interfaces(stages, tuple(o.owner for o in occurrences)),
        actions=_actions(occurrences, plan.microbatches),
        microbatches=plan.microbatches,
    )


def stage_occurrences(
    template: Template, num_layers: int, num_groups: int
) -> tuple[StageOccurrence, ...]:
    """Tile the template over the model; the last block may be truncated.

    The template is laid end to end from operator ``offset`` on. The operators before it are the
    tail of the last stage position.
    """
    total = 4 * num_layers
    starts: list[tuple[int, int]] = []
    if template.offset:
        starts.append((0, template.num_stages - 1))
    for block in range(template.offset, total, template.num_operators):
        for position, cut in enumerate((0, *template.cuts)):
            if block + cut < total:
                starts.append((block + cut, position))
    stops = [start for start, _ in starts[1:]] + [total]
    last = len(starts) - 1
    return tuple(
        StageOccurrence(
            index=index,
            position=position,
            owner=position % num_groups,
            start=start,
            stop=stop,
            embed=index == 0,
            head=index == last,
        )
        for index, ((start, position), stop) in enumerate(zip(starts, stops, strict=True))
    )


def occurrence_operators(
    operators: tuple[OperatorSpec, ...], occurrence: StageOccurrence
) -> tuple[OperatorSpec, ...]:
    """The slice of the operator sequence one occurrence runs, embed and head included."""
    first = 0 if occurrence.embed else occurrence.start + 1
    last = len(operators) if occurrence.head else occurrence.stop + 1
    return operators[first:last]


def boundary_interfaces(
    stages: tuple[tuple[OperatorSpec, ...], ...], owners: tuple[int, ...]
) -> tuple[tuple[TensorSpec, ...], ...]:
    """Tensors crossing each boundary, by liveness.

    A tensor crosses boundary i when a later operator still reads it and the owner of that
    operator does not hold it already: it neither produced it nor received it earlier. It is
    relayed along the chain until it reaches that owner. The last boundary carries the ids.
    """
    count = len(stages)
    crossing: list[dict[str, TensorSpec]] = [{} for _ in range(count)]
    specs: dict[str, tuple[int, TensorSpec]] = {}
    readers: dict[str, list[int]] = {}
    for index, stage in enumerate(stages):
        for op in stage:
            for tensor in op.inputs:
                readers.setdefault(tensor.name, []).append(index)
            for tensor in op.outputs:
                specs.setdefault(tensor.name, (index, tensor))
    for name, (producer, tensor) in specs.items():
        if name == "ids":
            continue
        holders = {owners[producer]}
        needs = [index for index in readers.get(name, ()) if index > producer]
        for boundary in range(producer, count - 1):
            if not any(index > boundary and owners[index] not in holders for index in needs):
                break
            crossing[boundary][name] = tensor
            holders.add(owners[boundary + 1])
    if owners[-1] != owners[0]:
        crossing[-1]["ids"] = specs["ids"][1]
    return tuple(tuple(tensors.values()) for tensors in crossing)


def check_plan(plan: Plan, config: ModelConfig) -> None:
    """Raise :class:`PlanError` unless ``plan`` can run ``config``."""
    if plan.model.digest != config.digest:
        raise PlanError(
            f"the plan is for model {plan.model.name!r} (architecture {plan.model.digest}), "
            f"got model {config.name!r} ({config.digest}){_tiny_hint(plan.model.name, config.name)}"
        )
    if plan.template.layers > config.num_layers:
        raise PlanError(
            f"the template spans {plan.template.layers} layers, the model has {config.num_layers}"
        )
    for index, group in enumerate(plan.groups):
        _check_group(index, group, config)


def _tiny_hint(planned: str, got: str) -> str:
    """What to do where one of the two is the other one's tiny stand-in."""
    if got == f"{planned}-tiny":
        return (
            f"; plan for the tiny model: weavejax.plan(model.config, ...), or weavejax plan "
            f"{planned} --random-weights"
        )
    if planned == f"{got}-tiny":
        return (
            "; run the tiny model: weavejax.load_model(..., random_weights=True, scale='tiny'), or "
            f"weavejax generate {got} --random-weights"
        )
    return ""


def _check_group(index: int, group: DeviceGroup, config: ModelConfig) -> None:
    try:
        check_heads(config, group.heads_ways)
    except ValueError as error:
        raise PlanError(f"group {index}: {error}") from None
    ways = group.tensor_parallel
    sizes = {"vocab_size": config.vocab_size, "hidden_size": config.hidden_size}
    if any(kind.ffn == "dense" for kind in config.layer_kinds):
        sizes["intermediate_size"] = config.intermediate_size
    if config.moe is not None:
        if group.expert_parallel > 1:
            sizes["num_experts"] = config.moe.num_experts
        else:
            sizes["moe intermediate_size"] = config.moe.intermediate_size
        if config.moe.shared_intermediate_size:
            sizes["shared_intermediate_size"] = config.moe.shared_intermediate_size
    for name, size in sizes.items():
        if size % ways:
            raise PlanError(
                f"group {index}: {name} must divide over tensor_parallel={ways} devices, got {size}"
            )


def _actions(
    occurrences: tuple[StageOccurrence, ...], microbatches: int
) -> tuple[tuple[int, Action], ...]:
    actions: list[tuple[int, Action]] = []
    count = len(occurrences)
    for occurrence in occurrences:
        index, owner = occurrence.index, occurrence.owner
        before, after = occurrences[index - 1].owner, occurrences[(index + 1) % count].owner
        for microbatch in range(microbatches):
            if before != owner:
                actions.append((owner, Receive((index - 1) % count, microbatch)))
            actions.append((owner, Run(index, microbatch)))
            if after != owner:
                actions.append((owner, Send(index, microbatch)))
    return tuple(actions)
