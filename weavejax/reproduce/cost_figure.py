"""Figure 9: cost on H100, with the colocated baseline both ways."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from weavejax.reproduce.figure import Figure
from weavejax.reproduce.homogeneous import (
    Key,
    Outcomes,
    base_outcomes,
    cases,
    cheapest_in,
    gains,
    infeasible_baselines,
)
from weavejax.reproduce.scope import POLICIES, Bench, paper
from weavejax.reproduce.words import finite_max, gain_label, ratio_range
from weavejax.workbench import plots
from weavejax.workbench.cases import Outcome, record
from weavejax.workbench.table import Table

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
    told, count = paper()["fig9"], len(gain)
    beside = _beside_the_paper(outcomes, both_ways, bench)
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


def _beside_the_paper(outcomes: Outcomes, both_ways: Outcomes, bench: Bench) -> list[dict]:  # type: ignore[type-arg]
    told = paper()["fig9"]
    count = len(gains(outcomes))
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
    return beside


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


def _cost(outcome: Outcome) -> float | None:
    cost = outcome.usd_per_million_tokens
    return None if math.isinf(cost) else cost
