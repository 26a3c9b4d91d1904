"""The pictures of tables: bars per setting, lines along an axis, a map of gains.

Matplotlib is imported only here and only when something is drawn; figures never touch its global
state, so that drawing works in any thread and without a display.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from weavejax.workbench.table import Table

COLOURS = ("#7f7f7f", "#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#d55e00", "#0072b2", "#f0e442")
"""Distinguishable to colour-blind readers; the order of :data:`ORDER`."""

ORDER = ("colocated", "afd", "cad", "weave")
COST = "USD per million output tokens"


def figure(rows: int = 1, columns: int = 1, *, width: float = 4.2, height: float = 3.4) -> Figure:
    """An empty figure with a grid of axes; sizes are of one panel, in inches.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "drawing needs matplotlib 3.9 or newer: pip install matplotlib"
        ) from error
    made = Figure(figsize=(width * columns, height * rows), layout="constrained")
    made.subplots(rows, columns, squeeze=False)
    return made


def save(drawn: Figure, path: str | Path) -> None:
    """Write a figure; the ending chooses the form, and equal content gives equal files."""
    import matplotlib

    metadata = {"Date": None} if str(path).endswith(".svg") else None
    with matplotlib.rc_context({"svg.hashsalt": "weavejax", "svg.fonttype": "none"}):
        drawn.savefig(path, dpi=110, metadata=metadata)


def colour(name: str, names: Sequence[str]) -> str:
    """The colour of a policy: fixed for those that ship, the next free one for others."""
    if name in ORDER:
        return COLOURS[ORDER.index(name)]
    others = [other for other in dict.fromkeys(names) if other not in ORDER]
    return COLOURS[len(ORDER) + others.index(name) % (len(COLOURS) - len(ORDER))]


def bars(
    axes: Axes,
    groups: Sequence[str],
    series: Mapping[str, Sequence[float | None]],
    *,
    y_label: str,
    title: str = "",
    labels: Sequence[str] = (),
    colours: Mapping[str, str] | None = None,
) -> None:
    """Grouped bars; a cross where a value is missing, ``labels`` above the groups."""
    names = list(series)
    width = 0.8 / len(names)
    known = [v for values in series.values() for v in values if v is not None]
    top = max(known, default=0.0) or 1.0
    for index, name in enumerate(names):
        places = [g - 0.4 + width * (index + 0.5) for g in range(len(groups))]
        values = series[name]
        shade = (colours or {}).get(name) or colour(name, names)
        axes.bar(places, [v or 0.0 for v in values], width * 0.92, label=name, color=shade)
        missing = [p for p, v in zip(places, values, strict=True) if v is None]
        axes.plot(missing, [0.03 * top] * len(missing), "x", color=shade, markersize=6)
    for place, label in enumerate(labels):
        highest = max((values[place] or 0.0 for values in series.values()), default=0.0)
        axes.text(place, highest + 0.03 * top, label, ha="center", va="bottom", fontsize=8)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_ylim(0, 1.18 * top)
    axes.set_ylabel(y_label)
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)


def lines(
    axes: Axes,
    x: Sequence[float],
    series: Mapping[str, Sequence[float | None]],
    *,
    x_label: str,
    y_label: str,
    title: str = "",
    log_x: bool = False,
    marker: str = "o",
) -> None:
    """One line per series; gaps where a value is missing."""
    names = list(series)
    for below, name in zip(reversed(range(len(names))), names, strict=True):
        values = [float("nan") if v is None else v for v in series[name]]
        shade = colour(name, names)
        # Earlier lines are wider, so that equal ones show.
        width, size = 1.5 + 0.6 * below, 4 + 0.8 * below
        axes.plot(x, values, marker=marker, markersize=size, lw=width, label=name, color=shade)
    if log_x:
        axes.set_xscale("log")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def token_axis(axes: Axes, contexts: Sequence[int]) -> None:
    """Label a horizontal axis of contexts in tokens."""
    axes.set_xticks(contexts, [tokens(context) for context in contexts])
    axes.minorticks_off()


def legend(drawn: Figure, axes: Axes) -> None:
    """One legend for all panels, above them."""
    handles, labels = axes.get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)


def tokens(count: int) -> str:
    """``32K`` for 32768 tokens, else the number.

    Examples:
        >>> tokens(32768), tokens(1000)
        ('32K', '1000')
    """
    return f"{count // 1024}K" if count % 1024 == 0 else str(count)


def cost_bars(table: Table) -> Figure:
    """Cost by policy: one panel per model, cluster and target, one group per context."""
    panels = list(dict.fromkeys((r["model"], r["cluster"], r["tpot_slo_ms"]) for r in table))
    drawn = figure(1, len(panels))
    policies = list(dict.fromkeys(table.column("policy")))
    for axes, (model, cluster, slo_ms) in zip(drawn.axes, panels, strict=True):
        rows = table.where(model=model, cluster=cluster, tpot_slo_ms=slo_ms)
        contexts = list(dict.fromkeys(rows.column("context_tokens")))
        series = {
            policy: [
                _one(rows.where(context_tokens=context, policy=policy)) for context in contexts
            ]
            for policy in policies
        }
        bars(
            axes,
            [tokens(context) for context in contexts],
            series,
            y_label=COST,
            title=f"{model}, {cluster}\nTPOT target {slo_ms:g} ms",
        )
        axes.set_xlabel("mean context (tokens); x: no plan")
    legend(drawn, drawn.axes[0])
    return drawn


def cost_lines(table: Table) -> Figure:
    """Cost by policy along the swept axis."""
    drawn = figure(width=6.0, height=4.0)
    policies = list(dict.fromkeys(table.column("policy")))
    x = list(dict.fromkeys(table.column(table.x)))
    series = {
        policy: [_one(table.where(**{table.x: value, "policy": policy})) for value in x]
        for policy in policies
    }
    first = table.records[0]
    fixed = {
        "context": f"context {tokens(first['context_tokens'])}",
        "tpot_slo_s": f"TPOT target {first['tpot_slo_ms']:g} ms",
    }
    title = ", ".join(text for axis, text in fixed.items() if axis != first.get("axis"))
    positive = min(x) > 0 and max(x) / min(x) > 8
    lines(
        drawn.axes[0],
        x,
        series,
        x_label=table.x_label,
        y_label=COST,
        title=f"{first['model']} on {first['cluster']}\n{title}",
        log_x=positive,
    )
    drawn.axes[0].set_ylim(bottom=0)
    legend(drawn, drawn.axes[0])
    return drawn


def gain_map(table: Table) -> Figure:
    """Colocated cost over the best cost of two or more groups, over context and target."""
    contexts = sorted(set(table.column("context_tokens")))
    slos = sorted(set(table.column("tpot_slo_ms")))
    drawn = figure(width=1.6 + 0.95 * len(contexts), height=1.6 + 0.5 * len(slos))
    axes = drawn.axes[0]
    for row in table:
        column, line = contexts.index(row["context_tokens"]), slos.index(row["tpot_slo_ms"])
        shade, label = _gain_cell(row)
        axes.barh(line, 1, 1, left=column - 0.5, color=shade, edgecolor="white", linewidth=2)
        axes.text(column, line, label, ha="center", va="center", fontsize=9)
    axes.set_xticks(range(len(contexts)), [tokens(context) for context in contexts])
    axes.set_yticks(range(len(slos)), [f"{slo:g}" for slo in slos])
    axes.set_xlim(-0.5, len(contexts) - 0.5)
    axes.set_ylim(-0.5, len(slos) - 0.5)
    axes.set_xlabel("mean context (tokens)")
    axes.set_ylabel("TPOT target (ms)")
    first = table.records[0]
    axes.set_title(
        f"{first['model']} on {first['cluster']}\ncolocated cost / best split cost;\n"
        "grey: do not disaggregate",
        fontsize=10,
    )
    return drawn


def _gain_cell(row: Mapping[str, Any]) -> tuple[str, str]:
    """Colour and text of one cell of the map."""
    gain = row["gain_of_splitting"]
    if row["verdict"] == "no plan":
        return "#ffffff", "no plan"
    if row["verdict"] == "only split fits":
        return "#009e73", "only\nsplit"
    if row["verdict"] == "only colocated fits":
        return "#bdbdbd", "only\ncoloc."
    if gain <= 1:
        return "#d9d9d9", f"{gain:.2f}"
    strength = min(1.0, (gain - 1) / 0.5)
    level = tuple(int(255 + strength * (end - 255)) for end in (102, 194, 165))
    return "#{:02x}{:02x}{:02x}".format(*level), f"{gain:.2f}"


def _one(rows: Table) -> float | None:
    return rows.records[0]["usd_per_million_tokens"] if rows.records else None
