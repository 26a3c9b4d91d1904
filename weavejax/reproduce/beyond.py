"""Beyond the paper: what offsets, more replicas and data-parallel attention save, per setting."""

from __future__ import annotations

import math
from statistics import mean
from typing import TYPE_CHECKING

from weavejax.reproduce.assumptions import WIDE_REPLICAS, limited, wide
from weavejax.reproduce.figure import Figure
from weavejax.reproduce.homogeneous import Key, base_outcomes, cases
from weavejax.reproduce.scope import Bench
from weavejax.reproduce.words import ratio_range
from weavejax.workbench import plots
from weavejax.workbench.cases import Case, Outcome
from weavejax.workbench.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


def _data_parallel(case: Case) -> Case:
    return limited(case, attention_data_parallel=True)


def _offsets(case: Case) -> Case:
    return limited(case, offsets=True)


EXTENSIONS = {
    "offsets": _offsets,
    f"<={WIDE_REPLICAS} replicas": wide,
    "data-parallel attention": _data_parallel,
    "all three": lambda case: _offsets(_data_parallel(wide(case))),
}
"""Each makes the space of every policy larger, so none can make a best plan dearer."""


def beyond(bench: Bench) -> Figure:
    """Saving of each extension over the paper's space, on the best plan and on the split one."""
    base = base_outcomes(bench)
    changed = {
        name: bench.run(
            {
                key: change(case)
                for key, case in cases(bench.scope).items()
                if key.policy in ("colocated", "weave")
            },
            f"beyond the paper: {name}",
        )
        for name, change in EXTENSIONS.items()
    }
    rows = []
    for key in (key for key in base if key.policy == "weave"):
        row = {
            "model": key.model,
            "target ms": key.slo_s * 1e3,
            "context": key.context,
            "paper's space, USD": _best(base, key),
            "all three, USD": _best(changed["all three"], key),
        }
        for name, outcomes in changed.items():
            row[f"{name}: saved"] = _saved(_best(base, key), _best(outcomes, key))
        for name, outcomes in changed.items():
            row[f"{name}: split saved"] = _saved(
                base[key].usd_per_million_tokens, outcomes[key].usd_per_million_tokens
            )
        winner = changed["all three"]
        row["best plan"] = "split" if _split_wins(winner, key) else "colocated"
        row["gain of splitting"] = _ratio(winner[key._replace(policy="colocated")], winner[key])
        rows.append(row)
    table = Table(records=tuple(rows))
    return Figure(
        name="beyond",
        title="Beyond the paper: savings of a larger space, per setting",
        data=table,
        sections=(
            (
                "Part of the best plan's cost that is saved (colocated or split)",
                _columns(table, ": saved", "USD"),
            ),
            (
                "Part of the best split plan's cost that is saved",
                _columns(table, ": split saved", "best plan", "gain of splitting"),
            ),
        ),
        statement=_statement(table),
        draw=lambda: _draw(table, bench),
    )


def _best(outcomes: dict[Key, Outcome], key: Key) -> float:
    both = (outcomes[key], outcomes[key._replace(policy="colocated")])
    return min(outcome.usd_per_million_tokens for outcome in both)


def _split_wins(outcomes: dict[Key, Outcome], key: Key) -> bool:
    colocated = outcomes[key._replace(policy="colocated")]
    return outcomes[key].usd_per_million_tokens < colocated.usd_per_million_tokens


def _saved(before: float, after: float) -> float | None:
    return None if math.isinf(before) or math.isinf(after) else 1 - after / before


def _ratio(one: Outcome, many: Outcome) -> float | None:
    if one.plan is None or many.plan is None:
        return None
    return one.usd_per_million_tokens / many.usd_per_million_tokens


def _columns(table: Table, *ends: str) -> Table:
    setting = ("model", "target ms", "context")
    names = (*setting, *(n for n in table.columns if n.endswith(ends) and n not in setting))
    rows = [
        {
            name: f"{row[name]:.1%}"
            if name.endswith("saved") and row[name] is not None
            else row[name]
            for name in names
        }
        for row in table
    ]
    return Table(records=tuple(rows))


def _statement(table: Table) -> str:
    parts = []
    for name in EXTENSIONS:
        best = [v for v in table.column(f"{name}: saved") if v is not None]
        split = [v for v in table.column(f"{name}: split saved") if v is not None]
        if best and split:
            parts.append(
                f"{name}: {mean(best):.1%} on average and up to {max(best):.1%} ({mean(split):.1%} "
                f"and {max(split):.1%} of the best split plan's)"
            )
    wins = sum(name == "split" for name in table.column("best plan"))
    gains = [gain for gain in table.column("gain of splitting") if gain is not None]
    return (
        f"Saved of the best plan's cost: {'; '.join(parts)}. With all three, splitting is cheapest "
        f"in {wins} of {len(table)} settings and gains {ratio_range(gains)} over colocation: "
        "data-parallel attention is offered to the colocated plan too."
    )


def _draw(table: Table, bench: Bench) -> Drawing:
    models = bench.scope.models
    drawn = plots.figure(len(models), 1, width=9.0, height=3.0)
    names = list(EXTENSIONS)
    for axes, model in zip(drawn.axes, models, strict=True):
        rows = table.where(model=model)
        groups = [f"{plots.tokens(r['context'])}\n{r['target ms']:g} ms" for r in rows]
        series = {
            name: [None if v is None else 100 * v for v in rows.column(f"{name}: saved")]
            for name in names
        }
        shades = dict(zip(names, plots.COLOURS[4:], strict=False))
        plots.bars(
            axes, groups, series, y_label="saved (%)", title=f"{model}, best plan", colours=shades
        )
        axes.set_xlabel("mean context and TPOT target; no bar: nothing saved")
    plots.legend(drawn, drawn.axes[0])
    return drawn
