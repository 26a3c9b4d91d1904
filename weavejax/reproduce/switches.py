"""The page of switches: the figures of merit of figures 9 to 11 under every assumption."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from weavejax.reproduce.assumptions import SWITCHES, Switch
from weavejax.reproduce.between import BEYOND, between
from weavejax.reproduce.figure import Figure
from weavejax.reproduce.homogeneous import CLUSTER, Key, cases, gains
from weavejax.reproduce.merits import MIB, STAGES, countings, merits, paper_merits
from weavejax.reproduce.scope import Bench, paper
from weavejax.reproduce.words import finite_max
from weavejax.workbench import plots
from weavejax.workbench.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


def flipped(bench: Bench, switch: Switch) -> dict[Key, object]:
    """Outcomes of every setting under one switch; unchanged cases are not searched again."""
    changed = {key: switch.change(case) for key, case in cases(bench.scope).items()}
    return bench.run(changed, f"switch: {switch.name}")


def switches(bench: Bench) -> Figure:
    """Every figure of merit of figures 9 to 11 under every switch."""
    models = bench.scope.models
    rows = [{"switch": "paper"} | paper_merits(models)]
    largest: dict[str, list[float | None]] = {model: [] for model in models}
    for switch in SWITCHES:
        outcomes = flipped(bench, switch)
        rows.append({"switch": switch.name} | merits(outcomes, models))  # type: ignore[arg-type]
        for model in models:
            largest[model].append(finite_max(gains(outcomes, model).values()))  # type: ignore[arg-type]
    table = Table(records=tuple(rows))
    first = {name: rows[0][name] for name in rows[0] if name not in second_countings(rows[0])}
    lies = between(first, countings(rows[1:], "switch"))
    beyond = lies.where(verdict=BEYOND).column("figure of merit")
    described = rows[1]
    return Figure(
        name="switches",
        title="Switches: what each assumption does to figures 9 to 11",
        data=table,
        sections=(
            ("Between which switches the paper's numbers lie", lies),
            *_sections(table),
        ),
        statement=(
            f"As described, weave is cheapest in {described['weave cheapest in']} settings (paper: "
            f"{rows[0]['weave cheapest in']}). Of the paper's {len(lies)} numbers "
            f"{len(lies) - len(beyond)} are reached by a switch or lie between two"
            f"{'; not ' + ', '.join(beyond) if beyond else ''}. The "
            "switches are assumptions, not fits: each value is round and none was searched for. A "
            "mixed cache keeps one window of a sliding layer instead of the whole context. "
            f"All settings on {CLUSTER}."
        ),
        draw=lambda: _draw(largest),
    )


def second_countings(row: dict[str, object]) -> set[str]:
    """Columns that count what another column counts."""
    return {name for name in row for counted in (STAGES, MIB) if name.endswith(tuple(counted)[1])}


def _sections(table: Table) -> tuple[tuple[str, Table], ...]:
    def pick(*names: str) -> Table:
        columns = ("switch", *(n for n in table.columns if any(n.endswith(e) for e in names)))
        return Table(records=tuple({c: row.get(c) for c in columns} for row in table))

    return (
        (
            "Gains (figure 9): best feasible baseline / weave",
            pick("cheapest in", "plan baselines", "gain"),
        ),
        ("Stages and occupancy (figure 10)", pick(*STAGES, "occupancy")),
        (
            "MiB between groups per token (figure 10; the paper counts between nodes)",
            pick(*MIB),
        ),
        ("Rows per device over weave's (figure 11)", pick("batch ratio")),
    )


def _draw(largest: dict[str, list[float | None]]) -> Drawing:
    drawn = plots.figure(width=8.5, height=0.4 * len(SWITCHES))
    axes = drawn.axes[0]
    height = 0.8 / len(largest)
    for index, (model, values) in enumerate(largest.items()):
        places = [i - 0.4 + height * (index + 0.5) for i in range(len(SWITCHES))]
        shade = plots.COLOURS[3 + 3 * index]
        axes.barh(places, [v or 0 for v in values], height * 0.9, label=model, color=shade)
        axes.axvline(paper()["fig9"]["max_gain"][model], color=shade, ls=":", lw=1.2)
    axes.axvline(1, color="black", lw=0.8)
    names = [textwrap.fill(switch.name, 56) for switch in SWITCHES]
    axes.set_yticks(range(len(SWITCHES)), names)
    axes.set_ylim(len(SWITCHES) - 0.5, -0.5)
    axes.set_xlabel("largest gain over the best\nfeasible baseline (dotted: paper)")
    axes.spines[["top", "right"]].set_visible(False)
    plots.legend(drawn, axes)
    return drawn
