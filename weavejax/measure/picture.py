"""Predicted and measured timelines, one above the other, to one scale."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weavejax.measure.validation import Validation
from weavejax.span import Span

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
_SEND = "#888888"


def draw_timelines(validation: Validation, path: str | Path, *, iterations: int = 2) -> None:
    """Write a picture (the suffix decides: ``.svg`` or ``.png``).

    Computing is a full bar, in one colour per microbatch; moves are thin grey bars below it, at
    the group that sends. A dashed line marks the end of an iteration.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    predicted = validation.expectation.spans(iterations)
    measured = steady(validation.measured_spans, iterations)
    groups = len(validation.expectation.plan.groups)
    figure = Figure(figsize=(11, 1.6 + 1.1 * groups), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True)
    trips = validation.round_trip
    _draw(upper, predicted, groups, trips.predicted, f"predicted, {1e3 * trips.predicted:.1f} ms")
    _draw(lower, measured, groups, trips.measured, f"measured, {1e3 * trips.measured:.1f} ms")
    lower.set_xlabel("ms")
    figure.suptitle(
        f"{validation.expectation.plan.model.name}: {trips.note} ({trips.error:+.1%})", fontsize=10
    )
    figure.savefig(path, dpi=150)


def steady(spans: Sequence[Span], iterations: int) -> list[Span]:
    """The last iterations of a trace, from time zero."""
    last = max((span.iteration for span in spans if span.kind == "compute"), default=0)
    kept = [span for span in spans if span.kind != "idle" and span.iteration > last - iterations]
    if not kept:
        return []
    origin_s = min(span.start_s for span in kept if span.kind == "compute")
    return [
        Span(**{**vars(s), "start_s": s.start_s - origin_s, "end_s": s.end_s - origin_s})
        for s in kept
    ]


def _draw(axes: Any, spans: Sequence[Span], groups: int, trip_s: float, title: str) -> None:
    for kind, low, height in (("compute", -0.3, 0.5), ("send", 0.24, 0.14)):
        for group in range(groups):
            mine = [span for span in spans if span.kind == kind and span.group == group]
            axes.broken_barh(
                [(1e3 * span.start_s, 1e3 * span.duration_s) for span in mine],
                (group + low, height),
                facecolors=[
                    COLOURS[(span.microbatch or 0) % len(COLOURS)] if kind == "compute" else _SEND
                    for span in mine
                ],
                edgecolor="white",
                linewidth=0.2,
            )
    axes.axvline(1e3 * trip_s, color="black", linestyle="--", linewidth=0.8)
    axes.set_ylim(groups - 0.5, -0.5)
    axes.set_yticks(range(groups), [f"group {group}" for group in range(groups)])
    axes.set_title(title, fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
