"""A plan as a person reads it: cuts, groups, memory, times, cost, rivals and the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weavejax.models.config import ModelConfig
from weavejax.models.specs import LAYER_OPERATORS
from weavejax.plan import Plan
from weavejax.plan_table import describe_group
from weavejax.planner.comparison import Comparison, Rival
from weavejax.planner.partition import partition_block
from weavejax.planner.predict import evaluate
from weavejax.planner.sensitivity import Flip
from weavejax.prediction import Prediction
from weavejax.schedule import Schedule, build_schedule

STYLES = ("cyan", "magenta", "yellow", "green", "blue", "red")


def explain(
    plan: Plan, comparison: Comparison | None = None, flips: Sequence[Flip] = ()
) -> RenderableType:
    """Everything about a plan, for a rich console.

    Args:
        plan: evaluated with the profile it names unless it carries a prediction.
        comparison: :func:`weavejax.planner.comparison.compare`; adds rivals and the verdict.
        flips: :func:`weavejax.planner.sensitivity.flips`; adds what would turn the verdict.
    """
    prediction = plan.prediction or evaluate(plan)
    config = ModelConfig.from_dict(plan.model.config)
    schedule = build_schedule(plan, config)
    parts: list[RenderableType] = [
        _headline(plan, prediction),
        draw_cuts(plan, config, schedule),
        _groups(plan, prediction),
        _stages(plan, prediction, schedule),
    ]
    if prediction.moves:
        parts.append(_moves(prediction))
    if comparison is not None:
        parts += [_rivals(plan, prediction, comparison), Text(verdict(comparison), style="bold")]
        parts += [Text(line) for line in cap_lines(comparison)]
    parts += [Text(line) for line in flip_lines(flips)]
    return Group(*parts)


def verdict(comparison: Comparison) -> str:
    """One sentence: disaggregate or not, and by how much.

    Examples:
        >>> from weavejax.planner.comparison import Rival
        >>> nothing = Rival(name="x", plan=None)
        >>> verdict(Comparison(rivals=(nothing,) * 3, split=nothing, cap=None))
        'No plan meets the target, colocated or disaggregated.'
    """
    colocated, split, gain = comparison.colocated, comparison.split, comparison.gain
    if gain is None:
        if colocated.plan is None and split.plan is None:
            return "No plan meets the target, colocated or disaggregated."
        if split.plan is None:
            return f"Do not disaggregate: no plan of two or more groups fits ({split.reason})."
        return f"Disaggregate: no colocated plan fits ({colocated.reason})."
    assert split.plan is not None
    how = f"{len(split.plan.groups)} groups at ${split.usd_per_million_tokens:.4f}"
    one = f"one group at ${colocated.usd_per_million_tokens:.4f}"
    if comparison.disaggregate:
        return f"Disaggregate: {how} a million tokens cost {1 - 1 / gain:.1%} less than {one}."
    return (
        f"Do not disaggregate: {one} a million tokens; the best plan of two or more groups "
        f"costs {1 / gain - 1:.1%} more ({how})."
    )


def cap_lines(comparison: Comparison) -> list[str]:
    """Theorem 3.1's cap beside a homogeneous comparison, and what explains a gain above it."""
    cap = comparison.cap
    if cap is None:
        return []
    lines = [
        f"Theorem 3.1 caps a homogeneous gain at M/(M - M_weights) = {cap.cap:.2f} "
        f"(memory of {cap.devices} devices); here it is {cap.gain:.3f}."
    ]
    if cap.beyond:
        lines.append("The gain above the cap comes from what the theorem leaves out:")
        lines += [f"  - {reason}" for reason in cap.beyond]
    return lines


def flip_lines(flips: Sequence[Flip]) -> list[str]:
    """What turns the verdict, one line per axis."""
    lines = []
    for flip in flips:
        if flip.change is None:
            lines.append(f"{flip.axis}: none of {flip.tried} changes tried turns the verdict.")
        else:
            lines.append(f"{flip.axis}: the verdict turns with {flip.change}.")
    return lines


def draw_cuts(plan: Plan, config: ModelConfig, schedule: Schedule) -> Text:
    """The operators of one block, a line per layer, each under its group's number.

    A ``|`` stands where one stage ends and the next begins.
    """
    owners, starts = {}, set()
    for occurrence in schedule.occurrences:
        starts.add(occurrence.start)
        for index in range(occurrence.start, occurrence.stop):
            owners[index] = occurrence.owner
    block = partition_block(config)
    text = Text(f"One block of {block.layers} layers ({config.num_layers} in all):\n")
    # The second block shows the pattern that repeats; an offset leaves the first one's start.
    first = block.layers if config.num_layers >= 2 * block.layers else 0
    for layer in range(first, first + block.layers):
        text.append(f"  {layer:>3} {config.layer_kinds[layer]!s:<14}")
        for place, name in enumerate(LAYER_OPERATORS):
            index = len(LAYER_OPERATORS) * layer + place
            text.append("| " if index in starts else "  ")
            style = STYLES[owners[index] % len(STYLES)]
            text.append(f"{name}:{owners[index]}".ljust(12), style=style)
        text.append("\n")
    return text


def _headline(plan: Plan, prediction: Prediction) -> Text:
    cost = prediction.usd_per_million_tokens
    slo_s = plan.workload.tpot_slo_s
    target = "" if slo_s is None else f" (target {slo_s * 1e3:.1f} ms)"
    price = "no price" if cost is None else f"${cost:.4f} per million tokens"
    return Text(
        f"{plan.model.name} at context {plan.workload.context:,}: {plan.policy} plan, "
        f"{plan.num_devices} devices, batch {plan.batch:,} in {plan.microbatches} microbatches\n"
        f"round trip {prediction.round_trip_time_s * 1e3:.3f} ms{target}, {price}, "
        f"{prediction.tokens_per_s(plan.batch):,.0f} tokens/s, occupancy "
        f"{prediction.occupancy:.1%}, {prediction.internode_bytes_per_token / 2**20:.3f} MiB "
        "between nodes per token\n"
        f"{_measured_share(prediction):.0%} of compute time rests on measurement "
        f"(profile {plan.profile.name if plan.profile else 'given'})\n"
    )


def _measured_share(prediction: Prediction) -> float:
    total = sum(stage.time_s for stage in prediction.stages)
    measured = sum(stage.time_s * stage.measured_fraction for stage in prediction.stages)
    return measured / total if total else 0.0


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index < 2 else "right")
    return table


def _groups(plan: Plan, prediction: Prediction) -> Table:
    columns = ("group", "devices", "rows", "weights", "cache", "buffers", "reserve", "of", "busy")
    table = _table("Groups (GB of one replica)", columns)
    for index, (group, got) in enumerate(zip(plan.groups, prediction.groups, strict=True)):
        sizes = (
            got.weight_bytes,
            got.cache_bytes,
            got.buffer_bytes,
            got.reserve_bytes,
            got.memory_bytes,
        )
        table.add_row(
            str(index),
            describe_group(plan, index),
            str(group.resident_batch),
            *(f"{size / 1e9:.2f}" for size in sizes),
            f"{got.busy_fraction:.1%}",
            style=STYLES[index % len(STYLES)],
        )
    return table


def _stages(plan: Plan, prediction: Prediction, schedule: Schedule) -> Table:
    """One row per stage that differs: position, operators and time."""
    columns = ("stage", "operators", "group", "times", "each us", "total ms", "source", "measured")
    table = _table("Stages (one microbatch)", columns)
    rows: dict[tuple[object, ...], list[int]] = {}
    for stage in prediction.stages:
        position = schedule.occurrences[stage.occurrence].position
        key = (position, stage.time_s, len(schedule.operators[stage.occurrence]))
        rows.setdefault(key, []).append(stage.occurrence)
    for key, occurrences in sorted(rows.items(), key=lambda row: (row[0][0], row[1][0])):
        stage = prediction.stages[occurrences[0]]
        table.add_row(
            str(key[0]),
            stage.operators,
            str(stage.group),
            str(len(occurrences)),
            f"{stage.time_s * 1e6:.1f}",
            f"{stage.time_s * len(occurrences) * 1e3:.3f}",
            stage.source,
            f"{stage.measured_fraction:.0%}",
            style=STYLES[stage.group % len(STYLES)],
        )
    return table


def _moves(prediction: Prediction) -> Table:
    columns = ("from", "to", "times", "bytes a row", "each us", "source")
    table = _table("Moves (one microbatch)", columns)
    rows: dict[tuple[int, int, int, float, str], int] = {}
    for move in prediction.moves:
        key = (
            move.source_group,
            move.destination_group,
            move.bytes_per_row,
            move.time_s,
            move.source,
        )
        rows[key] = rows.get(key, 0) + 1
    for (source, target, size, time_s, tag), count in sorted(rows.items()):
        table.add_row(str(source), str(target), str(count), f"{size:,}", f"{time_s * 1e6:.1f}", tag)
    return table


def _limits_line(plan: Plan, comparison: Comparison) -> str:
    """What the rivals were searched under, and whether this plan was too."""
    limits = comparison.limits
    if plan.search_limits is None:
        whose = "these search limits, which are not said to be the plan's"
    elif plan.search_limits == limits.to_dict():
        whose = "the plan's search limits"
    else:
        whose = "other search limits than the plan's"
    return f"Under {whose}: {limits.describe()}"


def _rivals(plan: Plan, prediction: Prediction, comparison: Comparison) -> Table:
    columns = ("plan", "groups", "$/M tokens", "round trip ms", "occupancy", "devices")
    table = _table(_limits_line(plan, comparison), columns)
    this = Rival(name=f"this plan ({plan.policy})", plan=plan.replace(prediction=prediction))
    for rival in (this, *comparison.rivals, comparison.split):
        if rival.plan is None or rival.plan.prediction is None:
            table.add_row(rival.name, rival.reason, "-", "-", "-", "-")
            continue
        got = rival.plan.prediction
        groups = "; ".join(describe_group(rival.plan, i) for i in range(len(rival.plan.groups)))
        table.add_row(
            rival.name,
            groups,
            f"{rival.usd_per_million_tokens:.4f}",
            f"{got.round_trip_time_s * 1e3:.3f}",
            f"{got.occupancy:.1%}",
            str(rival.plan.num_devices),
        )
    return table
