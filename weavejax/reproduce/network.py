"""Figure 14: cost as the network between nodes changes, planned again at every point."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from weavejax.reproduce.assumptions import apart
from weavejax.reproduce.figure import Figure
from weavejax.reproduce.scope import Bench, case, paper
from weavejax.workbench import plots
from weavejax.workbench.cases import Case, Outcome, record
from weavejax.workbench.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

CLUSTER = "h100-sxm:32,l40s:32"
POLICIES = ("afd", "cad", "weave")
AXES = {
    "latency_us": ("latency (us) at 32 GB/s", "latency_s", 1e-6),
    "bandwidth_gb_per_s": ("bandwidth (GB/s) at 20 us", "bandwidth_bytes_per_s", 1e9),
}


PLACES: dict[str, Callable[[Case], Case]] = {"apart": apart, "may share": lambda case: case}
"""Whether groups of one type may share a node, whose link the sweep leaves alone."""


class Key(NamedTuple):
    """One point of a curve."""

    place: str
    axis: str
    value: float
    policy: str


def _cases(bench: Bench) -> dict[Key, Case]:
    told = paper()["fig14"]
    setting = (told["model"], CLUSTER, told["context"], told["slo_ms"] / 1e3)
    asked = {}
    for axis, (_, field, unit) in AXES.items():
        for key in (
            Key(place, axis, value, policy)
            for place in PLACES
            for value in told[axis]
            for policy in POLICIES
        ):
            base = case(bench.scope, *setting, key.policy)
            changed = base.cluster.with_network(**{field: key.value * unit})
            asked[key] = PLACES[key.place](dataclasses.replace(base, cluster=changed))
    return asked


def fig14(bench: Bench) -> Figure:
    """Both sweeps of the paper, with groups on nodes of their own and allowed to share."""
    asked = _cases(bench)
    outcomes: dict[Key, Outcome] = bench.run(asked, "network sweeps")
    rows = []
    for key in (key for key in asked if key.policy == "weave"):
        costs = {p: _cost(outcomes[key._replace(policy=p)]) for p in POLICIES}
        others = [cost for p in ("afd", "cad") if (cost := costs[p]) is not None]
        weave = costs["weave"]
        rows.append(
            {
                "groups": key.place,
                "axis": key.axis,
                "value": key.value,
                **costs,
                "best other / weave": min(others) / weave if others and weave else None,
                "weave runs on": record(asked[key], outcomes[key])["groups"],
            }
        )
    table = Table(records=tuple(rows))
    data = [key._asdict() | record(asked[key], outcome) for key, outcome in outcomes.items()]
    return Figure(
        name="fig14",
        title="Figure 14: sensitivity to the network between nodes",
        data=Table(records=tuple(data)),
        sections=(("USD per million output tokens", table),),
        statement=_statement(table),
        draw=lambda: _draw(table),
    )


def _statement(table: Table) -> str:
    told = paper()["fig14"]["no_plan_at_500_us"]
    parts = []
    for place, words in (("apart", "Groups on nodes of their own"), ("may share", "Sharing nodes")):
        rows = table.where(groups=place)
        comparable = [row for row in rows if row["best other / weave"] is not None]
        wins = sum(row["best other / weave"] > 1 for row in comparable)
        spreads = [
            f"{policy} {' / '.join(_spread(rows.where(axis=axis).column(policy)) for axis in AXES)}"
            for policy in POLICIES
        ]
        [worst] = rows.where(axis="latency_us", value=500).records
        missing = [p for p in POLICIES if worst[p] is None]
        parts.append(
            f"{words}: weave is cheapest at {wins} of {len(comparable)} comparable points; dearest "
            f"over cheapest point along latency / bandwidth: {', '.join(spreads)}; no plan at 500 "
            f"us: {', '.join(missing) or 'none'}"
        )
    return (
        f"{'. '.join(parts)}. The paper: weave cheapest at every comparable point, no plan at 500 "
        f"us for {' and '.join(told)}. It sweeps groups on nodes of their own; two groups of one "
        "type that share a node escape the sweep."
    )


def _spread(costs: Sequence[float | None]) -> str:
    known = [cost for cost in costs if cost is not None]
    return f"{max(known) / min(known):.2f}x" if known else "no plan"


def _draw(table: Table) -> Drawing:
    drawn = plots.figure(2, 2, width=4.6, height=3.4)
    panels = [(place, axis) for place in PLACES for axis in AXES]
    for axes, (place, axis) in zip(drawn.axes, panels, strict=True):
        rows = table.where(groups=place, axis=axis)
        where = "on nodes of their own" if place == "apart" else "may share a node"
        plots.lines(
            axes,
            rows.column("value"),
            {policy: rows.column(policy) for policy in POLICIES},
            x_label=f"inter-node {AXES[axis][0]}",
            y_label=plots.COST,
            title=f"gemma-3-27b, 8K, 60 ms, H100+L40S\ngroups {where}",
            log_x=True,
        )
        known = [cost for p in POLICIES for cost in rows.column(p) if cost is not None]
        axes.set_ylim(0, 1.1 * max(known, default=1.0))
        values = rows.column("value")
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.minorticks_off()
    plots.legend(drawn, drawn.axes[0])
    return drawn


def _cost(outcome: Outcome) -> float | None:
    cost = outcome.usd_per_million_tokens
    return cost if math.isfinite(cost) else None
