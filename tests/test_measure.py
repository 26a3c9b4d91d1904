"""Measuring: windows, what samples say, resumable profiles, expectations, validation."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import group, make_plan, nine_heads, tiny_model

from weavejax.cli.accuracy import table
from weavejax.measure import profiling, suite
from weavejax.measure.accuracy import measure_accuracy
from weavejax.measure.clustered import OneCoreLauncher
from weavejax.measure.expectation import expect, sequential_spans
from weavejax.measure.machine import IN_PROCESS, pin_cores, profile_cluster
from weavejax.measure.picture import draw_timelines, steady
from weavejax.measure.profiling import Grid, profile_model
from weavejax.measure.validation import Pair, live_buffers, validate
from weavejax.measure.windows import bind_windows
from weavejax.meshes.submesh import group_meshes
from weavejax.models.sequence import operator_sequence
from weavejax.plan import Parallelism, Template
from weavejax.planner.api import search
from weavejax.planner.limits import SearchLimits
from weavejax.planner.round_trip import round_trip_time
from weavejax.profiles import Profile
from weavejax.profiles.fit_operators import fit_profile
from weavejax.runtime.binding import bind_stages
from weavejax.runtime.cells import plan_cells
from weavejax.runtime.group import GroupRunner
from weavejax.runtime.programs import shared_programs
from weavejax.schedule import build_schedule

MODELS = ("llama-3.1-8b", "qwen3-0.6b", "gemma-3-27b", "qwen3-next-80b-a3b", "gpt-oss-20b")


# -- windows -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("length", [1, 2, 4, 20])
def test_windows_run_every_operator_once_and_read_what_was_written(name, length):
    config = tiny_model(name).config
    windows = bind_windows(config, Parallelism(), length, base=7)
    operators = [op for window in windows for op in window.operators]
    assert operators == list(operator_sequence(config)[1:-1])
    assert [window.index for window in windows] == list(range(7, 7 + len(windows)))
    held = {operator_sequence(config)[0].outputs[0].name}
    for window in windows:
        assert {tensor.name for tensor in window.reads} <= held
        held |= {tensor.name for tensor in window.writes}
        held -= set(window.forgets)
    assert held == {operator_sequence(config)[-1].inputs[0].name}
    assert windows[0].embed is not None and windows[-1].head is not None


def test_every_walk_computes_the_model():
    calibrator = profiling.make_calibrator(
        nine_heads(), Parallelism(), 2, 32, device="cpu", dtype="float32"
    )
    start, answers = np.array([7, 11], np.int32), []
    assert calibrator.alternating is not None
    walks = [lambda walk=walk: calibrator._walk(walk) for walk in calibrator.walks]
    for walk in (*walks, calibrator.alternating._walk):
        calibrator._reset(1)
        for held in calibrator.runner.held:
            held["ids"] = calibrator.runner.put(start, wire=True)
        walk()
        answers.append([np.asarray(held["ids"]).tolist() for held in calibrator.runner.held])
    assert all(answer == answers[0] for answer in answers)
    assert answers[0][0] != start.tolist()
    for _ in range(2):
        calibrator.sample(1)
    assert calibrator.point(2) == calibrator.point() != calibrator.point(1)


# -- profiles ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def profile(tmp_path_factory) -> Profile:
    path = tmp_path_factory.mktemp("profile") / "here.json"
    grid = Grid(rows=(2, 4), contexts=(32,))
    return profile_model(nine_heads(), grid, repeats=2, out=path)


def test_a_profile_says_what_was_measured_on_what(profile):
    device = profile.data.devices["cpu"]
    assert {times.name.split()[0] for times in device.operators.values()} == {
        "embed", "attn_in", "attn_core", "attn_out", "ffn", "head"
    }  # fmt: skip
    assert all(times.rows.tolist() == [2, 4] for times in device.operators.values())
    assert {"date", "jax", "dtype", "cores", "device_kind"} <= set(device.attributes)
    assert device.element_bytes == 4 and "in_process" in device.links
    assert json.loads(device.attributes["models"])["nine-heads"]["num_heads"] == 9
    core = operator_sequence(nine_heads().config)[2]
    found = profile.operator_time_s(core, group(4), batch=3, context=32)
    assert found.source == "measured" and found.time_s >= 0


def test_measuring_goes_on_where_it_stopped(tmp_path, monkeypatch):
    path, model, made = tmp_path / "p.json", nine_heads(), []
    original = profiling.make_calibrator

    def counting(*arguments, **options):
        made.append(arguments[2:4])
        if len(made) == 2:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(profiling, "make_calibrator", counting)
    grid = Grid(rows=(2, 4), contexts=(32,))
    with pytest.raises(KeyboardInterrupt):
        profile_model(model, grid, repeats=1, out=path)
    profile_model(model, grid, repeats=1, out=path)
    assert made == [(2, 32), (4, 32), (4, 32)]
    with pytest.raises(ValueError, match="goes on only where it was begun: its dtype is float32"):
        profile_model(model, grid, dtype="bfloat16", out=path)


def test_errors_name_the_rule():
    grid = Grid(rows=(2,), contexts=(32,), parallelisms=(Parallelism(tensor_parallel=9),))
    with pytest.raises(ValueError, match="tensor_parallel=9 needs 9 devices, got 8"):
        profile_model(nine_heads(), grid, repeats=1)
    with pytest.raises(ValueError, match=r"cores must be some of \[.*\], got \[4096\]"):
        pin_cores([4096])


def test_the_analytic_model_is_fitted_to_timed_operators(profile):
    fitted, residuals = fit_profile(profile)
    assert {r.kind for r in residuals} == {
        "embed", "attn_in", "attn_core", "attn_out", "ffn", "head"
    }  # fmt: skip
    efficiencies = fitted.data.devices["cpu"].efficiencies
    assert set(efficiencies) == {"gemm", "attention", "elementwise"}
    with pytest.raises(ValueError, match="has no operators to fit to"):
        fit_profile(Profile(dataclasses.replace(profile.data, devices={})))


# -- expectations --------------------------------------------------------------------------------


@given(st.integers(1, 4), st.data())
@settings(max_examples=15)
def test_groups_that_take_turns_take_the_sum_of_everything(microbatches, data):
    model = nine_heads()
    plan = make_plan(
        model, Template(cuts=(1,), offset=1), group(12), group(12), microbatches=microbatches
    )
    schedule = build_schedule(plan, model.config)
    count = len(schedule.occurrences)
    times = st.lists(st.floats(0, 1), min_size=count, max_size=count)
    compute, moves = data.draw(times), data.draw(times)
    owners = schedule.owners
    moves = [0.0 if owners[i] == owners[(i + 1) % count] else moves[i] for i in range(count)]
    spans = sequential_spans(schedule, compute, moves, 3)
    end_s = max((span.end_s for span in spans), default=0.0)
    together = [a + b for a, b in zip(compute, moves, strict=True)]
    expected = round_trip_time(together, [0.0] * count, [0] * count, microbatches)
    assert end_s / 3 == pytest.approx(expected)
    assert sum(s.kind == "compute" for s in spans) == 3 * microbatches * count


def test_an_expectation_is_the_planners_prediction_with_the_machines_links(profile):
    model = nine_heads()
    plan = make_plan(model, Template(cuts=(3,)), group(4), group(4), microbatches=2, context=32)
    apart = expect(plan, profile, shared=False)
    shared = expect(plan, profile, shared=True)
    local = expect(plan, profile, shared=True, local=[(0, 1), (1, 0)])
    assert apart.plan.cluster == profile_cluster(profile.data, ["cpu"])
    assert shared.round_trip_time_s == pytest.approx(
        2 * (sum(shared.compute_s) + sum(shared.move_s))
    )
    assert apart.round_trip_time_s <= shared.round_trip_time_s
    assert local.round_trip_time_s < shared.round_trip_time_s and sum(local.move_s) == 0
    assert "one after the other" in shared.how and "overlapping" in apart.how
    assert sum(g.busy_fraction for g in shared.prediction.groups) <= 1 + 1e-9
    # ends that a move keeps busy compute for longer, and the move alone is as much shorter
    link = dataclasses.replace(profile.data.devices["cpu"].links[IN_PROCESS], busy_s=1e-7)
    device = dataclasses.replace(profile.data.devices["cpu"], links={IN_PROCESS: link})
    data = dataclasses.replace(profile.data, devices={"cpu": device})
    busy = expect(plan, Profile(data), shared=False)
    assert busy.compute_s == pytest.approx([time_s + 2e-7 for time_s in apart.compute_s])
    assert busy.move_s == pytest.approx([time_s - 2e-7 for time_s in apart.move_s])
    times = busy.compute_s, busy.move_s, busy.schedule.owners
    assert busy.round_trip_time_s == round_trip_time(*times, plan.microbatches)


def test_planning_with_a_measured_profile_is_exact_and_predicts_what_expect_does(profile):
    config = nine_heads().config
    cluster = profile_cluster(profile.data, ["cpu"], 2)
    limits = SearchLimits(
        tensor_parallel=(1,), max_replicas=1, batches=(4,), max_groups=2, max_microbatches=2
    )
    best, same = (
        search(config, cluster, 32, 1.0, limits=limits, profile=profile, pareto=p, bound=p).best
        for p in (True, False)
    )
    assert best is not None and same is not None and best.prediction is not None
    assert (best.template, best.microbatches) == (same.template, same.microbatches)
    found = expect(best, profile, shared=False)
    assert found.round_trip_time_s == best.prediction.round_trip_time_s


# -- memory and validation -----------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_predicted_memory_is_what_the_devices_hold(name, profile):
    model = tiny_model(name)
    template = Template(cuts=(1,), offset=1)
    plan = make_plan(model, template, group(8, 2), group(8), microbatches=2, context=64)
    stages = bind_stages(plan, model.config, build_schedule(plan, model.config))
    before = live_buffers()
    runners = []
    for index, (owner, mesh) in enumerate(zip(plan.groups, group_meshes(plan), strict=True)):
        mine = [stage for stage in stages if stage.owner == index]
        programs = shared_programs(model.config, 64, "float32")
        runners.append(GroupRunner(owner, mine, mesh, plan_cells(plan), programs, (8,)))
        runners[-1].load(model)
    held = {device: size - before.get(device, 0) for device, size in live_buffers().items()}
    expected = expect(plan, profile, shared=True).prediction
    for runner, memory in zip(runners, expected.groups, strict=True):
        for device in runner.mesh.devices.flat:
            predicted = memory.weight_bytes + memory.cache_bytes
            assert predicted == pytest.approx(held[device], rel=0.05)


def test_a_plan_is_validated_and_drawn(profile, tmp_path):
    model = nine_heads()
    plan = make_plan(model, Template(cuts=(3,)), group(4), group(4), microbatches=2, context=32)
    found = validate(model, plan, profile, repeats=2, iterations=3)
    assert found.round_trip.measured > 0 and found.round_trip.predicted > 0
    assert [pair.note for pair in found.stages] == ["group 0", "group 1"] * 3
    assert all(pair.measured > 0 for pair in (*found.stages, *found.moves))
    assert all(abs(pair.error) < 0.05 for pair in found.memory)
    assert all(0 < pair.measured <= 1 for pair in found.occupancy)
    names = {span.name for span in found.measured_spans if span.kind == "compute"}
    predicted = {s.name for s in found.expectation.spans(1) if s.kind == "compute"}
    assert predicted <= names
    off = dataclasses.replace(found, round_trip=Pair(name="x", predicted=2.0, measured=1.0))
    assert off.within(1.1) and not off.within(0.9)
    draw_timelines(found, tmp_path / "t.svg")
    picture = (tmp_path / "t.svg").read_text()
    assert "predicted" in picture and "measured" in picture and "group 1" in picture
    two = [span for span in steady(found.measured_spans, 2) if span.name == "run stage 0 mb0"]
    assert len(two) == 2


def test_a_pair_of_nothing_has_no_error():
    assert Pair(name="x", predicted=0.0, measured=0.0).error == 0
    assert Pair(name="x", predicted=1.0, measured=0.0).error == float("inf")


def test_the_accuracy_table_of_a_small_setting(monkeypatch):
    monkeypatch.setattr(suite, "BATCH", 4)
    cuts = suite._cuts(0)
    cases = tuple(suite._case(name, cuts, 2) for name in ("colocated", "afd"))
    setting = suite.Setting(model="nine-heads", context=32, cases=cases)
    found, measured = measure_accuracy([setting], {"nine-heads": nine_heads}, rounds=2)
    assert [(row.plan, row.microbatches) for row in found.rows] == [("colocated", 2), ("afd", 2)]
    assert all(row.predicted_s > 0 and row.measured_s > 0 for row in found.rows)
    assert found.mean_error == pytest.approx(np.mean([abs(row.error) for row in found.rows]))
    [choice] = found.choices()
    assert choice.plans == 2 and choice.slower >= 0
    assert json.loads(json.dumps(found.to_dict()))["plans"][1]["plan"] == "afd"
    assert table(found).row_count == 2
    assert measured.data.devices["cpu"].operators


def test_every_worker_of_a_judged_plan_gets_one_core(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3, 5, 6})
    model = nine_heads()
    plan = make_plan(model, Template(cuts=(3,)), group(4), group(4))
    places = OneCoreLauncher().place(plan, "127.0.0.1")
    # The first is on the last core, where this process times operators.
    assert [places[name].cores for name in sorted(places)] == [(6,), (5,)]
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3})
    with pytest.raises(ValueError, match="a core of its own: 2 groups, got 1 cores"):
        OneCoreLauncher().place(plan, "127.0.0.1")


def test_the_suite_has_twelve_plans_at_one_setting_and_every_number_of_microbatches():
    every = suite.settings()
    assert len({s.model for s in every}) == 2 == len({s.context for s in every})
    assert len(every[0].cases) == 12 and sum(len(s.cases) for s in every) == 24
    assert {c.microbatches for s in every for c in s.cases} == {1, 2, 3, 4}
    for name in ("colocated", "afd", "cad"):
        assert len({c.microbatches for s in every for c in s.cases if c.name == name}) > 2
    config = suite.small_gemma().config
    for case in every[2].cases:
        build_schedule(case.plan(config, every[2].context), config)
    assert set(suite.MODELS) == {s.model for s in every}
