"""Figure 12: simulated over measured time per token. Only the paper's side can be given here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weavejax.reproduce.figure import Figure
from weavejax.reproduce.scope import Bench, paper
from weavejax.workbench import plots
from weavejax.workbench.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


def fig12(bench: Bench) -> Figure:
    """The paper's errors; ours need the paper's H100 and L40S machines."""
    told = paper()["fig12"]
    rows = tuple(
        {
            "model": model,
            "policy": policy,
            "paper: simulated / measured": ratio,
            "paper: error": f"{ratio - 1:+.1%}",
            "ours": "not measured",
        }
        for model in bench.scope.models
        for policy, ratio in told[model].items()
    )
    means = {
        model: sum(abs(ratio - 1) for ratio in told[model].values()) / len(told[model])
        for model in bench.scope.models
    }
    stated = ", ".join(f"{model} {error:.1%}" for model, error in means.items())
    return Figure(
        name="fig12",
        title="Figure 12: simulated over measured time per token",
        data=Table(records=rows),
        sections=(("The paper's numbers", Table(records=rows)),),
        statement=(
            "NOT MEASURED HERE: this figure needs plans running on two and four H100 and L40S, and "
            f"a profile cannot stand in for them. The paper's mean absolute errors are {stated}. "
            "What can be said: our simulator and our runtime execute the same action list, so a "
            "run's own timeline can be held against its prediction where the devices are there."
        ),
        draw=lambda: _draw(told, bench),
    )


def _draw(told: dict[str, dict[str, float]], bench: Bench) -> Drawing:
    models = bench.scope.models
    drawn = plots.figure(1, len(models), width=3.8)
    for axes, model in zip(drawn.axes, models, strict=True):
        policies = list(told[model])
        plots.bars(
            axes,
            policies,
            {"paper": list(told[model].values()), "ours: not measured": [None] * len(policies)},
            y_label="simulated / measured TPOT",
            title=model,
            colours={"paper": "#b3b3b3", "ours: not measured": "#009e73"},
        )
        axes.axhline(1, color="black", lw=0.8)
    plots.legend(drawn, drawn.axes[0])
    return drawn
