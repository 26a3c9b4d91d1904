"""Figures 10 and 11: stages, traffic, occupancy and batches on H100."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weavejax.reproduce.cost_figure import HELD, held_outcomes
from weavejax.reproduce.figure import Figure
from weavejax.reproduce.homogeneous import (
    base_outcomes,
    batch_ratio,
    mean_of,
)
from weavejax.reproduce.scope import GEMMA, POLICIES, Bench, paper
from weavejax.workbench import plots
from weavejax.workbench.table import Table, cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


def fig10(bench: Bench) -> Figure:
    """Mean stages, traffic between nodes and occupancy."""
    outcomes = base_outcomes(bench)
    told = paper()["fig10"]
    names = {
        "stages": "mean_stages",
        "internode_mib_per_token": "internode_mib_per_token",
        "payload_mib_per_token": None,
        "copied_mib_per_token": "internode_mib_per_token",
        "occupancy": "occupancy",
        "microbatches": None,
    }
    rows = [
        {
            "what": what,
            "model": model,
            "policy": policy,
            "paper": None if at is None else told[at][model][policy],
            "ours": mean_of(outcomes, model, policy, what),
        }
        for what, at in names.items()
        for model in bench.scope.models
        for policy in ("cad", "afd", "weave")
    ]
    table = Table(records=tuple(rows))

    return Figure(
        name="fig10",
        title="Figure 10: stages, traffic between nodes and occupancy on H100",
        data=table,
        sections=(("Means over the settings with a plan", table),),
        statement=_fig10_statement(table, bench),
        draw=lambda: _draw_fig10(table, bench),
    )


def _fig10_statement(table: Table, bench: Bench) -> str:
    parts = []
    for model in bench.scope.models:
        at = {
            (row["what"], row["policy"]): cell(row["ours"])
            for row in table.where(model=model)
            if row["ours"] is not None
        }
        words = (
            f"{word} {at.get((what, 'weave'), '-')} against {at.get((what, 'afd'), '-')}"
            for word, what in (
                ("stages", "stages"),
                ("MiB a token", "internode_mib_per_token"),
                ("occupancy", "occupancy"),
            )
        )
        parts.append(f"{model}, weave against AFD: {', '.join(words)}")
    return (
        f"Agrees in kind. {'; '.join(parts)}. The paper counts a truncated block as a fraction "
        "(62/6 blocks of two stages are 20.67), we count the stages that run; its bytes are nearer "
        "to a copy for every receiving device; its AFD and CAD idle half the time, as two groups "
        "do that hand one microbatch to and fro. Each is a switch: see switches.md."
    )


def _draw_fig10(table: Table, bench: Bench) -> Drawing:
    whats = {
        "stages": "stages",
        "internode_mib_per_token": "MiB between nodes per token",
        "occupancy": "compute occupancy",
    }
    models = bench.scope.models
    drawn = plots.figure(len(models), len(whats), width=3.6, height=3.0)
    policies = ("cad", "afd", "weave")
    for index, (model, what) in enumerate((m, w) for m in models for w in whats):
        rows = table.where(model=model, what=what)
        series = {side: rows.column(side) for side in ("paper", "ours")}
        plots.bars(
            drawn.axes[index],
            policies,
            series,
            y_label=whats[what],
            title=model,
            colours={"paper": "#b3b3b3", "ours": "#009e73"},
        )
    plots.legend(drawn, drawn.axes[0])
    return drawn


def fig11(bench: Bench) -> Figure:
    """Rows per device, relative to weave."""
    outcomes = base_outcomes(bench)
    both_ways = {**outcomes, **held_outcomes(bench)}
    told = paper()["fig11"]
    rows = []
    for model in bench.scope.models:
        for policy in POLICIES:
            row = {"model": model, "policy": policy, "paper": told[model][policy]}
            rows.append(row | {"ours": batch_ratio(outcomes, model, policy)})
            if policy == "colocated":
                rows.append(
                    {
                        "model": model,
                        "policy": HELD,
                        "paper": told[model][policy],
                        "ours": batch_ratio(both_ways, model, policy),
                    }
                )
    table = Table(records=tuple(rows))
    return Figure(
        name="fig11",
        title="Figure 11: batch per device at the relaxed target, relative to weave",
        data=table,
        sections=(("Mean over contexts", table),),
        statement=_fig11_statement(table, bench),
        draw=lambda: _draw_fig11(table, bench),
    )


def _fig11_statement(table: Table, bench: Bench) -> str:
    texts = []
    for model in bench.scope.models:
        parts = [
            f"{row['policy']} {row['ours']:.2f} (paper {row['paper']:.2f})"
            for row in table.where(model=model)
            if row["ours"] is not None and row["policy"] != "weave"
        ]
        texts.append(f"{model}: {', '.join(parts)}")
    why = (
        " Colocated replicas of 8 devices hold one copy of the weights where two of 2 hold four, "
        "so the colocated ratio follows its TP limit"
    )
    if GEMMA in bench.scope.models:
        why += "; AFD and CAD of Gemma hold larger batches here because their moves cost less time"
    return "; ".join(texts) + "." + why + "."


def _draw_fig11(table: Table, bench: Bench) -> Drawing:
    drawn = plots.figure(1, len(bench.scope.models), width=4.6)
    for axes, model in zip(drawn.axes, bench.scope.models, strict=True):
        rows = table.where(model=model)
        series = {side: rows.column(side) for side in ("paper", "ours")}
        plots.bars(
            axes,
            [name.replace(" ", "\n") for name in rows.column("policy")],
            series,
            y_label="rows per device / weave's",
            title=model,
            colours={"paper": "#b3b3b3", "ours": "#009e73"},
        )
    plots.legend(drawn, drawn.axes[0])
    return drawn
