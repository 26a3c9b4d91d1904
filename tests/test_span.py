"""Spans and the Chrome trace made of them."""

from __future__ import annotations

import json
import math
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from weavejax.span import Span, chrome_trace, write_chrome_trace

TIMES_S = st.floats(0, 1e4)
SPANS = st.lists(
    st.builds(
        lambda start_s, duration_s, **rest: Span(
            start_s=start_s, end_s=start_s + duration_s, **rest
        ),
        start_s=TIMES_S,
        duration_s=TIMES_S,
        name=st.text(max_size=5),
        kind=st.sampled_from(("compute", "send", "receive", "idle")),
        group=st.integers(0, 2),
        replica=st.integers(0, 2),
        microbatch=st.none() | st.integers(0, 3),
        occurrence=st.none() | st.integers(0, 9),
        iteration=st.integers(0, 3),
    ),
    max_size=12,
)


def facts(span):
    """What a span says, as a trace event must say it."""
    args = {"iteration": span.iteration}
    for name in ("microbatch", "occurrence"):
        if getattr(span, name) is not None:
            args[name] = getattr(span, name)
    args = tuple(sorted(args.items()))
    return span.name, span.kind, span.start_s * 1e6, span.duration_s * 1e6, args


@given(SPANS)
@settings(max_examples=60)
def test_a_trace_holds_every_span_once_on_a_named_track(spans):
    trace = json.loads(json.dumps(chrome_trace(spans, group_names={0: "attention"})))
    assert set(trace) == {"traceEvents", "displayTimeUnit"}
    events = trace["traceEvents"]
    assert {event["ph"] for event in events} <= {"M", "X"}
    assert events[0] == {
        "ph": "M",
        "name": "process_name",
        "pid": 0,
        "args": {"name": "weavejax"},
    }
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    complete = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in events} == {0}
    assert set(names) == {event["tid"] for event in complete}
    assert len(set(names.values())) == len(names)
    assert Counter(map(facts, spans)) == Counter(
        (e["name"], e["cat"], e["ts"], e["dur"], tuple(sorted(e["args"].items()))) for e in complete
    )
    for event in complete:
        assert math.isfinite(event["ts"]) and event["dur"] >= 0
        assert f" · {event['cat']}" in names[event["tid"]]
    for tid in names:
        starts = [event["ts"] for event in complete if event["tid"] == tid]
        assert starts == sorted(starts)


def test_tracks_are_named_by_group_kind_and_replica():
    spans = [
        Span(name="a", kind="compute", group=1, replica=2, start_s=0.0, end_s=1.0),
        Span(name="b", kind="send", group=0, start_s=0.0, end_s=1.0),
    ]
    events = chrome_trace(spans, group_names={0: "attention"}, process="demo")["traceEvents"]
    assert events[0]["args"] == {"name": "demo"}
    labels = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert labels == ["attention · send", "group 1 · compute · replica 2"]


def test_a_file_holds_the_trace_whatever_the_order_of_spans(tmp_path):
    spans = [
        Span(name=f"run {i}", kind="compute", group=0, start_s=i * 0.5, end_s=i * 0.5 + 0.25)
        for i in range(4)
    ]
    write_chrome_trace(tmp_path / "trace.json", reversed(spans), group_names={0: "all"})
    written = json.loads((tmp_path / "trace.json").read_text())
    assert written == chrome_trace(spans, group_names={0: "all"})
    assert [e["ts"] for e in written["traceEvents"] if e["ph"] == "X"] == [0, 5e5, 1e6, 1.5e6]
