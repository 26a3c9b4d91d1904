"""Figures 9, 10 and 11: cost, stages, traffic, occupancy and batches on H100."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from weavejax.reproduce.figure import Figure
from weavejax.reproduce.homogeneous import (
    Key,
    Outcomes,
    base_outcomes,
    batch_ratio,
    cases,
    cheapest_in,
    gains,
    infeasible_baselines,
    mean_of,
)
from weavejax.reproduce.scope import GEMMA, POLICIES, Bench, paper
from weavejax.reproduce.words import finite_max, gain_label, ratio_range
from weavejax.workbench import plots
from weavejax.workbench.cases import Outcome, record
from weavejax.workbench.table import Table, cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

HELD = "colocated TP<=2"
"""The colocated baseline held to two devices a replica."""
SMALL_TP = (1, 2)


def held_outcomes(bench: Bench) -> dict[Key, Outcome]:
    """The colocated baseline again, at most two devices a replica."""
    held = {
        key: dataclasses.replace(
            case, limits=dataclasses.replace(case.limits, tensor_parallel=SMALL_TP)
        )
        for key, case in cases(bench.scope).items()
        if key.policy == "colocated"
    }
    return bench.run(held, "colocated, at most two devices a replica")


def fig9(bench: Bench) -> Figure:
    """Cost of every policy in the homogeneous settings."""
    outcomes, held = base_outcomes(bench), held_outcomes(bench)
    both_ways = {**outcomes, **held}
    gain, gain_held = gains(outcomes), gains(both_ways)
    rows = []
    for key, case in cases(bench.scope).items():
        row = record(case, outcomes[key])
        rows.append(row)
        if key.policy == "colocated":
            rows.append(record(case, held[key]) | {"policy": HELD})
    told = paper()["fig9"]
    count = len(gain)
    beside = [
        {
            "what": "settings in which weave is cheapest",
            "paper": f"{told['cheapest_in']} of {told['settings']}",
            "ours, colocated TP<=8": f"{cheapest_in(outcomes)} of {count}",
            "ours, colocated TP<=2": f"{cheapest_in(both_ways)} of {count}",
        },
        {
            "what": "baseline configurations without a plan",
            "paper": told["infeasible_baseline_configurations"],
            "ours, colocated TP<=8": infeasible_baselines(outcomes),
            "ours, colocated TP<=2": infeasible_baselines(both_ways),
        },
    ]
    for model in bench.scope.models:
        beside.append(
            {
                "what": f"largest gain over the best baseline, {model}",
                "paper": told["max_gain"][model],
                "ours, colocated TP<=8": finite_max(gains(outcomes, model).values()),
                "ours, colocated TP<=2": finite_max(gains(both_ways, model).values()),
            }
        )
    per_setting = [
        {
            "model": key.model,
            "target ms": key.slo_s * 1e3,
            "context": key.context,
            **{name: _cost(outcomes[key._replace(policy=name)]) for name in POLICIES[:1]},
            HELD: _cost(held[key._replace(policy="colocated")]),
            **{name: _cost(outcomes[key._replace(policy=name)]) for name in POLICIES[1:]},
            "gain": gain_label(gain[key]),
            "gain, colocated TP<=2": gain_label(gain_held[key]),
        }
        for key in gain
    ]
    ranges = "; ".join(
        f"{model} {ratio_range(gains(outcomes, model).values())}, with colocated held to TP 2 "
        f"{ratio_range(gains(both_ways, model).values())}"
        for model in bench.scope.models
    )
    return Figure(
        name="fig9",
        title="Figure 9: cost on H100 across contexts and targets",
        data=Table(records=tuple(rows)),
        sections=(
            ("Ours beside the paper", Table(records=tuple(beside))),
            ("USD per million output tokens", Table(records=tuple(per_setting))),
        ),
        statement=(
            f"Weave (two or more groups, the paper's space) is cheapest in {cheapest_in(outcomes)} "
            f"of {count} settings where colocated may use TP 8 and in {cheapest_in(both_ways)} of "
            f"{count} where it is held to TP 2 (paper: {told['cheapest_in']} of "
            f"{told['settings']}); gains: {ranges}. The paper does not state the TP of its "
            "colocated engine, and this one limit decides most of the difference; the other "
            "switches are in switches.md."
        ),
        draw=lambda: _draw_fig9(outcomes, held, bench),
    )


def _draw_fig9(outcomes: Outcomes, held: Outcomes, bench: Bench) -> Drawing:
    panels = list(dict.fromkeys((key.model, key.slo_s) for key in outcomes))
    drawn = plots.figure(len(bench.scope.models), len(panels) // len(bench.scope.models), width=4.6)
    for axes, (model, slo_s) in zip(drawn.axes, panels, strict=True):
        contexts = bench.scope.contexts
        sources = {"colocated": (outcomes, "colocated"), HELD: (held, "colocated")}
        sources |= {policy: (outcomes, policy) for policy in POLICIES[1:]}
        series = {
            name: [_cost(source[Key(model, slo_s, context, policy)]) for context in contexts]
            for name, (source, policy) in sources.items()
        }
        found = gains(outcomes, model)
        plots.bars(
            axes,
            [plots.tokens(context) for context in contexts],
            series,
            y_label=plots.COST,
            title=f"{model}, TPOT target {slo_s * 1e3:g} ms",
            labels=[gain_label(found[Key(model, slo_s, c, "weave")]) for c in contexts],
            colours={HELD: "#c7c7c7"},
        )
        axes.set_xlabel("mean context (tokens); x: no plan;\nlabel: best baseline / weave")
    plots.legend(drawn, drawn.axes[0])
    return drawn


def fig10(bench: Bench) -> Figure:
    """Mean stages, traffic between nodes and occupancy."""
    outcomes = base_outcomes(bench)
    told = paper()["fig10"]
    names = {
        "stages": "mean_stages",
        "internode_mib_per_token": "internode_mib_per_token",
        "payload_mib_per_token": None,
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

        def ours(what: str, policy: str, model: str = model) -> float | None:
            return table.where(model=model, what=what, policy=policy).records[0]["ours"]

        told = paper()["fig10"]["internode_mib_per_token"][model]["afd"]
        least = ours("payload_mib_per_token", "afd")
        ratio = (
            ""
            if least is None
            else (
                f"; the paper's AFD moves {told / least:.1f} times the bytes of its interfaces "
                f"({cell(least)} MiB a token), and it does not say what else crosses"
            )
        )
        words = ", ".join(
            f"{what} {cell(ours(name, 'weave'))} against {cell(ours(name, 'afd'))} (AFD) and "
            f"{cell(ours(name, 'cad'))} (CAD)"
            for what, name in (
                ("stages", "stages"),
                ("MiB between nodes a token", "internode_mib_per_token"),
                ("occupancy", "occupancy"),
                ("microbatches", "microbatches"),
            )
        )
        parts.append(f"{model}: weave needs {words}{ratio}")
    return (
        f"Agrees in kind. {'. '.join(parts)}. The paper counts a truncated block as a fraction "
        "(62/6 blocks of two stages are 20.67), we count the stages that run. Its AFD and CAD "
        "pipeline one microbatch and idle half the time; ours pipeline more and idle less, because "
        "their moves cost less here: see the network switches in switches.md."
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


def _cost(outcome: Outcome) -> float | None:
    cost = outcome.usd_per_million_tokens
    return None if math.isinf(cost) else cost
