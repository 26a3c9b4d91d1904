"""Traces of running plans: spans from what was observed, and what an engine observes."""

from __future__ import annotations

import itertools
import json
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import group, make_plan, random_prompts, tiny_model

import weavejax as wj
from weavejax.plan import Template
from weavejax.planner.simulator import simulate_schedule
from weavejax.schedule import Receive
from weavejax.trace import Record, spans_of, trace_executor


def record(**fields):
    defaults = {"work": "stage", "iteration": 0, "prefill": False, "microbatch": 0, "index": 0}
    return Record(**{**defaults, **fields})


def test_a_span_begins_when_its_group_and_its_microbatch_were_free():
    records = [
        record(group=0, microbatch=0, submitted_s=10.0, done_s=13.0),
        record(group=0, microbatch=1, submitted_s=10.5, done_s=15.0),
        record(group=0, work="move", submitted_s=10.6, done_s=13.5),
        record(group=1, index=1, submitted_s=10.7, done_s=14.5),
    ]
    spans = spans_of(records, (0, 1), shared=False)
    found = {(s.kind, s.group, s.microbatch): (s.start_s, s.end_s) for s in spans}
    assert found["compute", 0, 0] == (0.0, 3.0)
    assert found["compute", 0, 1] == (3.0, 5.0)  # the group was busy
    assert found["send", 0, 0] == found["receive", 1, 0] == (3.0, 3.5)
    assert found["compute", 1, 0] == (3.5, 4.5)  # its microbatch had arrived
    idle = [(s.start_s, s.end_s) for s in spans if s.kind == "idle" and s.group == 1]
    assert idle == [(0.0, 3.5), (4.5, 5.0)]


def test_groups_that_share_cores_take_turns():
    records = [
        record(group=0, microbatch=0, submitted_s=0.0, done_s=3.0),
        record(group=1, microbatch=1, submitted_s=0.0, done_s=5.0),
    ]
    alone, shared = (spans_of(records, (0, 1), shared=flag) for flag in (False, True))
    assert [s.start_s for s in alone if s.kind == "compute"] == [0.0, 0.0]
    assert [s.start_s for s in shared if s.kind == "compute"] == [0.0, 3.0]


RECORDS = st.lists(
    st.builds(
        lambda submitted_s, took_s, **rest: record(
            submitted_s=submitted_s, done_s=submitted_s + took_s, **rest
        ),
        group=st.integers(0, 1),
        microbatch=st.integers(0, 2),
        index=st.integers(0, 3),
        work=st.sampled_from(("stage", "move")),
        submitted_s=st.floats(0, 10),
        took_s=st.floats(0, 10),
    ),
    max_size=12,
)


@given(RECORDS, st.booleans())
@settings(max_examples=60)
def test_a_group_does_one_thing_at_a_time_and_idle_fills_the_rest(records, shared):
    spans = spans_of(records, (0, 1, 0, 1), shared=shared)
    assert all(span.end_s >= span.start_s >= 0 for span in spans)
    lanes = {0, 1} if not shared else {None}
    for lane in lanes:
        mine = [s for s in spans if s.kind == "compute" and lane in (None, s.group)]
        for before, after in itertools.pairwise(sorted(mine, key=lambda s: s.end_s)):
            assert after.start_s >= before.end_s
    computing = [s for s in spans if s.kind == "compute"]
    if computing:
        whole_s = max(s.end_s for s in computing) - min(s.start_s for s in computing)
        for number in {s.group for s in computing}:
            parts = (s for s in spans if s.group == number and s.kind in ("compute", "idle"))
            assert sum(s.duration_s for s in parts) == pytest.approx(whole_s, abs=1e-6)


@pytest.fixture(scope="module")
def engine():
    model = tiny_model("llama-3.1-8b")
    plan = make_plan(model, Template(cuts=(3,)), group(2), group(2), microbatches=2, context=32)
    with wj.serve(model, plan, prefill_chunks=(8,)) as engine:
        yield engine


def test_every_action_of_every_iteration_is_one_span(engine, tmp_path):
    prompts = random_prompts(engine.model, (3, 4))
    before = engine.generate(prompts, wj.SamplingParams(max_tokens=5))
    with engine.trace() as trace:
        after = engine.generate(prompts, wj.SamplingParams(max_tokens=5))
    assert [o.token_ids for o in before] == [o.token_ids for o in after]
    schedule = engine._executor.schedule
    count = len(schedule.occurrences)
    simulated = simulate_schedule(schedule, [1.0] * count, [1.0] * count, iterations=1)
    expected = {(s.name, s.kind, s.group) for s in simulated.spans}
    decode = [s for s in trace.spans if "prefill" not in s.name and s.kind != "idle"]
    rest = [s for s in decode if s.name.startswith("run head")]
    assert len(rest) == 2 * 4 and {s.group for s in rest} == {1}
    for iteration in range(4):
        mine = [s for s in decode if s.iteration == iteration and s not in rest]
        assert {(s.name, s.kind, s.group) for s in mine} == expected
        assert len(mine) == sum(
            1 + (not hasattr(action, "stage"))
            for _, action in schedule.actions
            if not isinstance(action, Receive)
        )
    assert any(s.name.startswith("prefill run stage 0") for s in trace.spans)
    trace.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == len(trace.spans)


def test_groups_that_are_processes_are_not_followed():
    with pytest.raises(RuntimeError, match="only an engine whose groups live in this process"):
        with trace_executor(object(), threading.Lock()):  # type: ignore[arg-type]
            pass


def test_one_trace_at_a_time_and_none_of_a_closed_engine(engine):
    with engine.trace():
        with pytest.raises(RuntimeError, match="a trace of this engine already runs; end it first"):
            with engine.trace():
                pass
    with engine.trace() as trace:
        pass
    assert trace.spans == ()
