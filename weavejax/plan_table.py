"""A plan as a person reads it: groups, the cuts over one block, what crosses."""

from __future__ import annotations

from rich.table import Table

from weavejax.models.config import ModelConfig
from weavejax.plan import Plan
from weavejax.schedule import Schedule, StageOccurrence, build_schedule


def plan_table(plan: Plan, config: ModelConfig) -> Table:
    """One row per stage position of the first block, as a rich table.

    Columns: stage, group and its devices, the operators, what it sends on per row.
    """
    schedule = build_schedule(plan, config)
    title = (
        f"{plan.policy} plan for {plan.model.name}: {plan.batch} slots, "
        f"{plan.microbatches} microbatch{'es' * (plan.microbatches > 1)}, "
        f"context {plan.workload.context}"
    )
    table = Table(title=title, title_justify="left")
    for name in ("stage", "group", "devices", "operators", "sends per row"):
        table.add_column(name, justify="left", no_wrap=name != "operators")
    for occurrence in first_block(schedule):
        table.add_row(
            str(occurrence.position),
            str(occurrence.owner),
            describe_group(plan, occurrence.owner),
            describe_operators(schedule, occurrence.index),
            describe_interface(schedule, occurrence.index),
        )
    return table


def first_block(schedule: Schedule) -> tuple[StageOccurrence, ...]:
    """The occurrences of the first block of the template: one of every stage position, in order.

    Where an offset leaves a model of one block no room for the last stage, that stage is what
    stands before the block.
    """
    positions = max(o.position for o in schedule.occurrences) + 1
    start = next(o.index for o in schedule.occurrences if o.position == 0)
    block = schedule.occurrences[start : start + positions]
    return block if len(block) == positions else (*block, schedule.occurrences[0])


def describe_group(plan: Plan, index: int) -> str:
    """``2 x h100-sxm (TP 4)``: replicas, type and parallelism."""
    group = plan.groups[index]
    ways = []
    if group.tensor_parallel > 1:
        ways.append(f"TP {group.tensor_parallel}")
    if group.expert_parallel > 1:
        ways.append(f"EP {group.expert_parallel}")
    if group.attention_data_parallel > 1:
        ways.append(f"attention DP {group.attention_data_parallel}")
    return f"{group.replicas} x {group.device}" + (f" ({', '.join(ways)})" if ways else "")


def describe_operators(schedule: Schedule, index: int) -> str:
    """The operators of an occurrence, layers counted from its first."""
    layers = [op for op in schedule.operators[index] if op.layer is not None]
    base = layers[0].layer or 0
    names = []
    for op in layers:
        ahead = (op.layer or 0) - base
        names.append(op.kind + (f"(+{ahead})" if ahead else ""))
    if len(names) > 8:
        names = [*names[:4], "...", names[-1]]
    return " ".join(names)


def describe_interface(schedule: Schedule, index: int) -> str:
    """Names and bytes of what crosses the boundary after an occurrence."""
    tensors = schedule.interfaces[index]
    if not tensors:
        return "nothing"
    names = " ".join(tensor.name.split(".")[0] for tensor in tensors)
    return f"{names} ({sum(tensor.elements for tensor in tensors)} values)"
