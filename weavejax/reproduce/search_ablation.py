"""Table 3: the planner with its reductions switched off."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from weavejax.planner.ablation import PAPER_TABLE3, ablation
from weavejax.reproduce.figure import Figure
from weavejax.reproduce.scope import GEMMA, Bench
from weavejax.workbench import plots
from weavejax.workbench.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

CLUSTERS = {"h100": "h100-sxm:32", "a100+h100": "a100-sxm:32,h100-sxm:32"}
CONTEXT, SLO_S = 32768, 0.060


def table3(bench: Bench) -> Figure:
    """Candidates, simulations and seconds of the four rows, on both clusters."""
    rows = []
    for done, (title, cluster) in enumerate(CLUSTERS.items()):
        if bench.progress is not None:
            bench.progress("planner ablation", done, len(CLUSTERS))
        found = ablation(
            GEMMA,
            cluster,
            CONTEXT,
            SLO_S,
            # With data-parallel attention the raw grid is as large as the paper's.
            limits=dataclasses.replace(bench.scope.limits, attention_data_parallel=True),
            max_simulations=bench.scope.max_simulations,
        )
        for row in found:
            candidates, simulations, seconds = PAPER_TABLE3[title][row.name]
            rows.append(
                {"cluster": title}
                | dataclasses.asdict(row)
                | {
                    "paper: candidates": int(candidates),
                    "paper: simulated": int(simulations),
                    "paper: seconds on 64 cores": seconds,
                }
            )
    if bench.progress is not None:
        bench.progress("planner ablation", len(CLUSTERS), len(CLUSTERS))
    table = Table(records=tuple(rows))
    return Figure(
        name="table3",
        title="Table 3: the search without its reductions (Gemma-3-27B, 32K, 60 ms)",
        data=table,
        sections=(("Ours, beside the paper's on 64 cores", table),),
        statement=_statement(table),
        draw=lambda: _draw(table),
    )


def _statement(table: Table) -> str:
    parts = []
    for cluster in CLUSTERS:
        rows = table.where(cluster=cluster)
        whole = rows.where(grid="whole")
        full = whole.where(name="full").records[0]
        other = whole.where(name="no pareto").records[0]
        parts.append(
            f"{cluster}: {full['simulated']:,} of {full['candidates']:,} candidates simulated in "
            f"{full['seconds']:.1f} s, {other['simulated']:,} without frontiers"
        )
    grids = {row["grid"] for row in table}
    costs = {(row["grid"], row["cluster"], row["usd_per_million_tokens"]) for row in table}
    grids_run = {(row["grid"], row["cluster"]) for row in table}
    same = len(costs) == len(grids_run)
    agree = "all rows of one grid find the same cost" if same else "ROWS DISAGREE"
    small = (
        ""
        if grids == {"whole"}
        else (
            " Rows without bounds simulate everything that fits, so they run on the smaller grid "
            "they name, beside the full search on that grid."
        )
    )
    return (
        f"{'; '.join(parts)}; {agree}, as in the paper. Bounds cut far more here than there: the "
        "critical path is one of ours and not one of theirs. Counts are of our grid and do not "
        f"compare with theirs one to one.{small}"
    )


def _draw(table: Table) -> Drawing:
    drawn = plots.figure(1, 2, width=4.8)
    for axes, cluster in zip(drawn.axes, CLUSTERS, strict=True):
        rows = table.where(cluster=cluster)
        names = [row["name"] + ("" if row["grid"] == "whole" else "\n(small)") for row in rows]
        series = {what: rows.column(what) for what in ("candidates", "considered", "simulated")}
        plots.bars(axes, names, series, y_label="plans (log scale)", title=f"search on {cluster}")
        axes.set_yscale("log")
        axes.set_ylim(1, None)
        axes.tick_params(axis="x", labelsize=8)
    plots.legend(drawn, drawn.axes[0])
    return drawn
