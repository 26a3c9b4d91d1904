"""What each group executes, reads, writes and may forget: the schedule bound to its groups."""

from __future__ import annotations

from dataclasses import dataclass, replace

from weavejax.merging import merge_occurrences
from weavejax.models.config import ModelConfig
from weavejax.models.sequence import operator_sequence
from weavejax.models.specs import OperatorSpec, TensorSpec
from weavejax.plan import Plan
from weavejax.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class StageBinding:
    """One stage occurrence as its group executes it, or a few that follow each other.

    Which those are says :mod:`weavejax.merging`.
    """

    index: int
    """First occurrence."""
    last: int
    """Last occurrence."""
    owner: int
    embed: OperatorSpec | None
    operators: tuple[OperatorSpec, ...]
    """Layer operators, with parameter shapes for the group's parallelism."""
    head: OperatorSpec | None
    reads: tuple[TensorSpec, ...]
    writes: tuple[TensorSpec, ...]
    forgets: tuple[str, ...]
    """Tensors the group holds that nothing reads or sends after this binding's sends."""

    @property
    def reads_context(self) -> bool:
        """Whether a cache grows with the context, so that the prefix matters."""
        return any(state.length == "context" for op in self.operators for state in op.state)

    @property
    def reads_positions(self) -> bool:
        """Whether its layer operators look at positions, activity or slots of the rows."""
        return any(op.reads_positions for op in self.operators)

    @property
    def indices(self) -> set[int]:
        """Indices of every operator it needs the weights of."""
        ops = (self.embed, *self.operators, self.head)
        return {op.index for op in ops if op is not None}


def bind_stages(plan: Plan, config: ModelConfig, schedule: Schedule) -> tuple[StageBinding, ...]:
    """Bind every occurrence of the schedule."""
    sequences = [operator_sequence(config, group.heads_ways) for group in plan.groups]
    needed_later = _last_reads(schedule)
    bindings = []
    for part in merge_occurrences(
        schedule.occurrences, plan.template.num_operators, plan.microbatches
    ):
        first, last = part[0], part[-1]
        sequence = sequences[first.owner]
        stage = [op for occurrence in part for op in schedule.operators[occurrence.index]]
        layers = [op for op in stage if op.layer is not None]
        produced: set[str] = set()
        reads: dict[str, TensorSpec] = {}
        for op in layers:
            for tensor in op.inputs:
                if tensor.name not in produced:
                    reads[tensor.name] = tensor
            produced |= {tensor.name for tensor in op.outputs}
        writes = [
            tensor
            for op in layers
            for tensor in op.outputs
            if needed_later.get(tensor.name, -1) > last.index
            or (last.head and tensor.name == stage[-1].inputs[0].name)
        ]
        bindings.append(
            StageBinding(
                index=first.index,
                last=last.index,
                owner=first.owner,
                embed=sequence[0] if first.embed else None,
                operators=tuple(sequence[op.index + 1] for op in layers),
                head=sequence[-1] if last.head else None,
                reads=tuple(reads.values()),
                writes=tuple(writes),
                forgets=(),
            )
        )
    return _with_forgets(tuple(bindings), schedule)


def _last_reads(schedule: Schedule) -> dict[str, int]:
    return {
        tensor.name: index
        for index, stage in enumerate(schedule.operators)
        for op in stage
        for tensor in op.inputs
    }


def _with_forgets(
    bindings: tuple[StageBinding, ...], schedule: Schedule
) -> tuple[StageBinding, ...]:
    """Find, walking backwards, the last binding at which a group needs each tensor."""
    groups = {binding.owner for binding in bindings}
    seen: dict[int, set[str]] = {group: set() for group in groups}
    forgets: list[tuple[str, ...]] = []
    for binding in reversed(bindings):
        held = {tensor.name for tensor in (*binding.reads, *binding.writes)}
        held |= {tensor.name for tensor in schedule.interfaces[binding.last]}
        held |= {tensor.name for tensor in schedule.interfaces[binding.index - 1]}
        if binding.embed is not None:
            held.discard("ids")  # the next iteration's ids live in the same place
        fresh = held - seen[binding.owner] - {"ids"}
        seen[binding.owner] |= held
        forgets.append(tuple(sorted(fresh)))
    forgets.reverse()
    return tuple(
        replace(binding, forgets=names) for binding, names in zip(bindings, forgets, strict=True)
    )
