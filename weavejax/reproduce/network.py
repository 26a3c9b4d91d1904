"""Figure 14: cost as the network between nodes changes, planned again at every point."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

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


def fig14(bench: Bench) -> Figure:
    """Both sweeps of the paper."""
    told = paper()["fig14"]
    asked: dict[tuple[str, float, str], Case] = {}
    for axis, (_, field, unit) in AXES.items():
        for value in told[axis]:
            for policy in POLICIES:
                base = case(
                    bench.scope,
                    told["model"],
                    CLUSTER,
                    told["context"],
                    told["slo_ms"] / 1e3,
                    policy,
                )
                changed = base.cluster.with_network(**{field: value * unit})
                asked[axis, value, policy] = dataclasses.replace(base, cluster=changed)
    outcomes: dict[tuple[str, float, str], Outcome] = bench.run(asked, "network sweeps")
    rows = []
    for axis in AXES:
        for value in told[axis]:
            costs = {p: _cost(outcomes[axis, value, p]) for p in POLICIES}
            others = [costs[p] for p in ("afd", "cad") if costs[p] is not None]
            best = min(others) if others else None  # type: ignore[type-var]
            weave = costs["weave"]
            rows.append(
                {
                    "axis": axis,
                    "value": value,
                    **costs,
                    "best other / weave": None if not (best and weave) else best / weave,
                    "weave groups": record(
                        asked[axis, value, "weave"], outcomes[axis, value, "weave"]
                    )["groups"],
                }
            )
    table = Table(records=tuple(rows))
    data = [
        {"axis": axis, "value": value} | record(asked[axis, value, p], outcome)
        for (axis, value, p), outcome in outcomes.items()
    ]
    return Figure(
        name="fig14",
        title="Figure 14: sensitivity to the network between nodes",
        data=Table(records=tuple(data)),
        sections=(("USD per million output tokens", table),),
        statement=_statement(table),
        draw=lambda: _draw(table),
    )


def _statement(table: Table) -> str:
    told = paper()["fig14"]
    comparable = [row for row in table if row["best other / weave"] is not None]
    wins = sum(row["best other / weave"] > 1 for row in comparable)
    worst = table.where(axis="latency_us", value=500).records[0]
    missing = [p for p in ("afd", "cad") if worst[p] is None]

    def spread(axis: str, policy: str) -> str:
        costs = [c for c in table.where(axis=axis).column(policy) if c is not None]
        return f"{max(costs) / min(costs):.2f}x" if costs else "no plan"

    return (
        f"Weave is cheapest at {wins} of {len(comparable)} comparable points (paper: all). Over "
        f"the latencies its cost varies {spread('latency_us', 'weave')}, AFD "
        f"{spread('latency_us', 'afd')}, CAD {spread('latency_us', 'cad')}; over the bandwidths "
        f"{spread('bandwidth_gb_per_s', 'weave')}, {spread('bandwidth_gb_per_s', 'afd')} and "
        f"{spread('bandwidth_gb_per_s', 'cad')}. At 500 us without a plan: "
        f"{', '.join(missing) or 'none'} (paper: {', '.join(told['no_plan_at_500_us'])})"
        + (
            ""
            if len(missing) == 2
            else "; a plan survives there when its groups share a node, whose link the sweep "
            "leaves alone"
        )
        + "."
    )


def _draw(table: Table) -> Drawing:
    drawn = plots.figure(1, 2, width=4.6)
    for axes, (axis, (label, _, _)) in zip(drawn.axes, AXES.items(), strict=True):
        rows = table.where(axis=axis)
        plots.lines(
            axes,
            rows.column("value"),
            {policy: rows.column(policy) for policy in POLICIES},
            x_label=f"inter-node {label}",
            y_label=plots.COST,
            title="gemma-3-27b, 8K, 60 ms, H100+L40S",
            log_x=True,
        )
        axes.set_ylim(bottom=0)
        values = rows.column("value")
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.minorticks_off()
    plots.legend(drawn, drawn.axes[0])
    return drawn


def _cost(outcome: Outcome) -> float | None:
    cost = outcome.usd_per_million_tokens
    return cost if math.isfinite(cost) else None
