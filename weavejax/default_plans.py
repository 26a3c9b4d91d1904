"""Plans for the devices at hand, without a planner: the named templates at a sensible size."""

from __future__ import annotations

from weavejax.models.config import ModelConfig
from weavejax.plan import DeviceGroup, ModelRef, Plan, PlanError, Template, Workload
from weavejax.schedule import check_plan

TEMPLATES: dict[str, Template] = {
    "colocated": Template(),
    "afd": Template(cuts=(3,)),
    "cad": Template(cuts=(1,), offset=1),
}
"""Attention-FFN disaggregation cuts after ``attn_out``; core-attention disaggregation cuts around
``attn_core``, one operator after a layer boundary."""


def model_ref(config: ModelConfig) -> ModelRef:
    """What a plan says of its model."""
    return ModelRef(name=config.name, digest=config.digest, config=config.to_dict())


def default_plan(
    config: ModelConfig,
    policy: str = "colocated",
    *,
    devices: int = 1,
    device: str = "cpu",
    slots: int = 8,
    context: int | None = None,
    microbatches: int = 1,
) -> Plan:
    """A plan of a named policy for ``devices`` devices of one kind.

    Devices are split evenly over the groups; each group is one replica, cut over as many of its
    devices as the model divides by. With fewer devices than groups, every group gets one and they
    must share (``oversubscribe``).

    Args:
        config: the model.
        policy: ``colocated``, ``afd`` or ``cad``.
        devices: how many there are.
        device: their type.
        slots: requests served at once.
        context: tokens a slot holds; the model's limit, at most 2048, by default.
        microbatches: parts of the batch that are pipelined.

    Raises:
        PlanError: an unknown policy, slots that do not divide into microbatches, or a context
            beyond the model's.

    Examples:
        >>> from weavejax.models import preset_config
        >>> plan = default_plan(preset_config("smollm2-135m-instruct"), "afd", devices=2)
        >>> [group.tensor_parallel for group in plan.groups], plan.template.cuts
        ([1, 1], (3,))
    """
    if policy not in TEMPLATES:
        raise PlanError(f"policy must be one of {', '.join(TEMPLATES)}, got {policy!r}")
    if context is not None and context > config.max_position:
        raise PlanError(
            f"context must be at most the model's {config.max_position} positions, got {context}"
        )
    template = TEMPLATES[policy]
    count = template.num_stages
    for ways in range(max(1, devices // count), 0, -1):
        group = DeviceGroup(device=device, tensor_parallel=ways, resident_batch=slots)
        plan = Plan(
            model=model_ref(config),
            workload=Workload(
                context=min(config.max_position, 2048 if context is None else context)
            ),
            template=template,
            groups=(group,) * count,
            microbatches=microbatches,
            policy=policy,
        )
        try:
            check_plan(plan, config)
        except PlanError:
            if ways == 1:
                raise
            continue
        return plan
    raise AssertionError("one device always divides")
