"""Operators timed whole: the grid, merging, the key, files, and what the planner gets."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weavejax.models import operator_sequence, preset_config
from weavejax.models.tiny import tiny_config
from weavejax.plan import DeviceGroup
from weavejax.profiles import DeviceProfile, Profile, ProfileData
from weavejax.profiles.operator_key import operator_key
from weavejax.profiles.operator_times import OperatorTimes, merge_times

CONFIG = tiny_config(preset_config("gemma-3-27b"))
GROUP = DeviceGroup(device="cpu", resident_batch=8)


def times(rows=(1.0, 4.0), contexts=(64.0, 128.0), scale=1e-3, **changes):
    first = scale * (np.array(rows)[:, None] + np.array(contexts)[None, :] / 64)
    fields = {
        "name": "attn_core of a test",
        "rows": np.array(rows),
        "contexts": np.array(contexts),
        "time_s": np.stack([first, first / 2], axis=-1),
        "spread": np.zeros(first.shape),
    }
    return OperatorTimes(**{**fields, **changes})


def profile(**operators):
    device = DeviceProfile(
        device="cpu",
        bandwidth_bytes_per_s=2e10,
        bf16_flop_per_s=1e11,
        link_bandwidth_bytes_per_s=1e10,
        multiprocessors=2,
        element_bytes=4,
        operators=operators,
        stage_overhead_s=2e-4,
    )
    return Profile(ProfileData(name="local", devices={"cpu": device}))


@given(st.floats(1, 4), st.integers(64, 128), st.integers(1, 4))
def test_between_points_time_is_linear_and_the_mean_of_the_microbatches(rows, context, count):
    [seconds], [inside] = times().at(np.array([rows]), context, microbatches=count)
    first = 1e-3 * (rows + context / 64)
    assert seconds == pytest.approx(first * (1 + (count - 1) / 2) / count)
    assert inside


def test_beyond_the_grid_the_analytic_model_goes_on_from_the_edge():
    [seconds], [inside] = times().at(np.array([8.0]), 256)
    assert seconds == times().at(np.array([4.0]), 128)[0] and not inside
    core = operator_sequence(CONFIG)[22]
    assert core.kind == "attn_core" and core.layer_kind.attention == "full"
    known = profile(**{operator_key(core, GROUP): times()})
    edge, far, one = (
        known.operator_time_s(core, GROUP, *point) for point in ((4, 128), (4000, 128), (4, 64))
    )
    assert (edge.source, far.source) == ("measured", "derived")
    assert far.time_s > 100 * edge.time_s > 100 * one.time_s
    plain = Profile(
        dataclasses.replace(
            known.data,
            devices={"cpu": dataclasses.replace(known.data.devices["cpu"], operators={})},
        )
    )
    analytic = [plain.operator_time_s(core, GROUP, rows, 128).time_s for rows in (4, 4000)]
    assert far.time_s / edge.time_s == pytest.approx(analytic[1] / analytic[0])


def test_a_hole_is_bridged():
    table = times(rows=(1.0, 2.0, 4.0))
    holed = table.time_s.copy()
    holed[1] = np.nan
    found = dataclasses.replace(table, time_s=holed).at(np.array([2.0]), 64)
    assert found[0] == pytest.approx(table.at(np.array([2.0]), 64)[0])


def test_merging_keeps_old_points_and_prefers_new_ones():
    old, new = times(), times(rows=(4.0, 8.0), scale=2e-3)
    both = merge_times(old, new)
    assert both.rows.tolist() == [1, 4, 8]
    assert both.at(np.array([1.0]), 64)[0] == old.at(np.array([1.0]), 64)[0]
    for rows in (4.0, 8.0):
        assert both.at(np.array([rows]), 128)[0] == new.at(np.array([rows]), 128)[0]
    assert merge_times(None, old) is old


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"rows": np.array([4.0, 1.0])}, "rows of attn_core of a test must rise from at least 0"),
        ({"spread": np.zeros(2)}, r"have shape \(rows, contexts, 2\) = \(2, 2, 2\)"),
        ({"time_s": np.full((2, 2, 2), -1.0)}, "must be at least 0 seconds, got -1.0"),
    ],
)
def test_tables_state_the_rule_they_break(changes, message):
    with pytest.raises(ValueError, match=message):
        times(**changes)


def test_a_key_is_shared_by_operators_of_the_same_cost_alone():
    operators = operator_sequence(CONFIG)
    keys = [operator_key(op, GROUP) for op in operators]
    # embed, head, sliding and full attn_in (they differ in RoPE) and attn_core, attn_out, ffn
    assert len(set(keys)) == 8
    assert keys[4] == keys[8] != keys[3]
    wide = DeviceGroup(device="cpu", tensor_parallel=2, resident_batch=8)
    assert operator_key(operators[4], wide) != keys[4]


def test_a_timed_operator_answers_before_the_kernels_do():
    core = operator_sequence(CONFIG)[2]
    known = profile(**{operator_key(core, GROUP): times()})
    assert known.operator_time_s(core, GROUP, 2, 64).source == "measured"
    # it was timed as a stage of its own, so it holds the overhead of a stage once
    assert known.operator_time_s(core, GROUP, 2, 64).time_s == pytest.approx(3e-3 - 2e-4)
    assert known.operator_time_s(core, GROUP, 9, 64).source == "derived"
    assert known.with_microbatches(2).operator_time_s(core, GROUP, 2, 64).time_s == pytest.approx(
        0.75 * 3e-3 - 2e-4
    )
    assert known.with_microbatches(1) is known
    wide = DeviceGroup(device="cpu", tensor_parallel=2, resident_batch=8)
    assert known.operator_time_s(core, wide, 2, 64).source == "analytic"
    assert (known.element_bytes, known.stage_overheads_s) == (4, {"cpu": 2e-4})


@pytest.mark.parametrize("suffix", ["json", "npz"])
def test_files_keep_operators_and_the_hash(tmp_path, suffix):
    holes = times(scale=1 / 3000)
    holes.time_s[0, 0] = np.nan
    known = profile(**{operator_key(operator_sequence(CONFIG)[2], GROUP): holes})
    known.save(tmp_path / f"p.{suffix}")
    again = Profile.load(tmp_path / f"p.{suffix}")
    assert again.hash == known.hash
    [before], [after] = (p.data.devices["cpu"].operators.values() for p in (known, again))
    np.testing.assert_allclose(after.time_s, before.time_s, rtol=1e-7)
    assert (after.name, after.rows.tolist()) == (before.name, before.rows.tolist())
    assert again.data.devices["cpu"].stage_overhead_s == 2e-4
