"""Spans: what a group did, from when to when. Predicted and measured use this one type.

A trace file is a pure function of spans, in the Chrome trace format that Perfetto opens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

SpanKind = Literal["compute", "send", "receive", "idle"]


@dataclass(frozen=True, kw_only=True)
class Span:
    """One action of one replica's group, in seconds from the start of the trace.

    Examples:
        >>> span = Span(name="run s0 b0 mb0", kind="compute", group=0, start_s=0.0, end_s=0.5)
        >>> span.duration_s
        0.5
    """

    name: str
    kind: SpanKind
    group: int
    start_s: float
    end_s: float
    microbatch: int | None = None
    occurrence: int | None = None
    """Stage occurrence in the model (compute), or the one before the boundary (moves)."""
    iteration: int = 0
    replica: int = 0

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


def chrome_trace(
    spans: Iterable[Span], *, group_names: dict[int, str] | None = None, process: str = "weavejax"
) -> dict[str, Any]:
    """Spans as a Chrome trace object: one process, one track per (group, replica, kind).

    Args:
        spans: any order; times in seconds.
        group_names: what to call each group; ``group N`` where missing.

    Returns:
        A JSON-able dict with microsecond timestamps.
    """
    spans = sorted(spans, key=lambda s: (s.group, s.replica, s.kind, s.start_s))
    names = group_names or {}
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": process}}
    ]
    tracks: dict[tuple[int, int, str], int] = {}
    for span in spans:
        key = (span.group, span.replica, span.kind)
        if key not in tracks:
            tracks[key] = len(tracks)
            label = f"{names.get(span.group, f'group {span.group}')} · {span.kind}"
            if span.replica:
                label += f" · replica {span.replica}"
            meta = {"pid": 0, "tid": tracks[key]}
            events.append({"ph": "M", "name": "thread_name", **meta, "args": {"name": label}})
        args = {"iteration": span.iteration}
        if span.microbatch is not None:
            args["microbatch"] = span.microbatch
        if span.occurrence is not None:
            args["occurrence"] = span.occurrence
        events.append(
            {
                "ph": "X",
                "name": span.name,
                "cat": span.kind,
                "pid": 0,
                "tid": tracks[key],
                "ts": span.start_s * 1e6,
                "dur": span.duration_s * 1e6,
                "args": args,
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write_chrome_trace(
    path: str | Path, spans: Iterable[Span], *, group_names: dict[int, str] | None = None
) -> None:
    """Write spans to ``path`` for https://ui.perfetto.dev or chrome://tracing."""
    Path(path).write_text(json.dumps(chrome_trace(spans, group_names=group_names)))
