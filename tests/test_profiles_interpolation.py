"""Interpolation: exact at measured points, monotone between, continuous into the analytic model."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weavejax.profiles import DeviceProfile, KernelTable, Warp, load_profile
from weavejax.profiles.analytic import analytic_time_s
from weavejax.profiles.lines import Line, measured_line
from weavejax.profiles.schema import ANALYTIC, DERIVED, MEASURED
from weavejax.profiles.tables import KernelLookup
from weavejax.profiles.warp import PLAIN, progress

DATA = load_profile().data
LOOKUPS = {name: KernelLookup(device) for name, device in DATA.devices.items()}
DEVICE_NAMES = sorted(DATA.devices)
devices = st.sampled_from(DEVICE_NAMES)


@pytest.mark.parametrize("device", DEVICE_NAMES)
def test_gemm_is_exact_at_every_measured_point(device):
    table = DATA.devices[device].tables["gemm"]
    rows, widths, depths = table.points
    rng = np.random.default_rng(0)
    for i, j in zip(
        rng.integers(0, len(widths), 60), rng.integers(0, len(depths), 60), strict=True
    ):
        want = table.time_s[0, :, i, j].astype(float)
        times_s, codes = LOOKUPS[device].gemm(rows, int(widths[i]), int(depths[j]))
        known = np.isfinite(want)
        np.testing.assert_allclose(times_s[known], want[known], rtol=1e-12)
        assert (codes[known] == MEASURED).all()
        assert (codes[~known] == DERIVED).all()


@pytest.mark.parametrize("device", DEVICE_NAMES)
def test_attention_is_exact_at_every_measured_point(device):
    table = DATA.devices[device].tables["attention"]
    batches, contexts = table.points
    for index in range(0, len(table.shapes), 9):
        shape = tuple(map(int, table.shapes[index]))
        for column, context in enumerate(contexts):
            want = table.time_s[index, :, column].astype(float)
            known = np.isfinite(want)
            if not known.any() or 0 < shape[3] >= context:
                continue
            times_s, codes = LOOKUPS[device].attention(shape, batches[known], int(context))
            np.testing.assert_allclose(times_s, want[known], rtol=1e-12)
            assert (codes == MEASURED).all()


@pytest.mark.parametrize("kind", ["experts", "delta_net", "all_reduce"])
@pytest.mark.parametrize("device", DEVICE_NAMES)
def test_one_axis_kernels_are_exact_at_every_measured_point(device, kind):
    table = DATA.devices[device].tables[kind]
    for row, shape in zip(table.time_s, table.shapes, strict=True):
        known = np.isfinite(row)
        times_s, codes = LOOKUPS[device].plain(kind, tuple(map(int, shape)), table.points[0][known])
        np.testing.assert_allclose(times_s, row[known], rtol=1e-12)
        assert (codes == MEASURED).all()


@settings(max_examples=80, deadline=None)
@given(devices, st.integers(1, 300_000), st.integers(1, 80_000), st.integers(0, 72), st.data())
def test_gemm_moves_one_way_between_two_row_counts(device, n, k, interval, data):
    rows = DATA.devices[device].tables["gemm"].points[0]
    low, high = rows[interval], rows[interval + 1]
    inside = sorted(data.draw(st.lists(st.floats(low, high), min_size=1, max_size=8)))
    times_s, _ = LOOKUPS[device].gemm(np.array([low, *inside, high]), n, k)
    steps = np.diff(times_s) * np.sign(times_s[-1] - times_s[0])
    assert (steps >= -1e-12 * times_s.max()).all()


@settings(max_examples=50, deadline=None)
@given(devices, st.sampled_from(["n", "k"]), st.integers(0, 20), st.integers(0, 21), st.data())
def test_gemm_moves_one_way_between_two_widths_or_depths(device, axis, interval, other, data):
    """On the grid lines of the other axes, at a measured row count."""
    rows, widths, depths = DATA.devices[device].tables["gemm"].points
    low, high = widths[interval], widths[interval + 1]
    row = data.draw(st.sampled_from(rows.tolist()))
    inside = sorted(data.draw(st.lists(st.integers(int(low), int(high)), min_size=1, max_size=6)))
    times = []
    for value in (int(low), *inside, int(high)):
        n, k = (value, int(depths[other])) if axis == "n" else (int(widths[other]), value)
        times.append(LOOKUPS[device].gemm(np.array([row]), n, k)[0][0])
    steps = np.diff(times) * np.sign(times[-1] - times[0])
    assert (steps >= -1e-12 * max(times)).all()


@settings(max_examples=50, deadline=None)
@given(devices, st.integers(0, 10_000), st.data())
def test_attention_moves_one_way_between_two_batches(device, pick, data):
    table = DATA.devices[device].tables["attention"]
    shape = tuple(map(int, table.shapes[pick % len(table.shapes)]))
    context = data.draw(st.integers(1, 200_000))
    known = np.isfinite(table.time_s[table.shape_index(*shape)]).any(1)
    batches = table.points[0][known]
    if len(batches) < 2:
        return
    left = data.draw(st.integers(0, len(batches) - 2))
    sizes = np.linspace(batches[left], batches[left + 1], 9)
    times_s, _ = LOOKUPS[device].attention(shape, sizes, context)
    steps = np.diff(times_s) * np.sign(times_s[-1] - times_s[0])
    assert (steps >= -1e-12 * times_s.max()).all()


@pytest.mark.parametrize("device", DEVICE_NAMES)
def test_the_analytic_model_continues_the_edge(device):
    """Just outside the grid the answer is the edge's; further out it follows the roofline."""
    lookup, edge = LOOKUPS[device], 32_768.0
    times_s, codes = lookup.gemm(np.array([edge, edge * (1 + 1e-9), 2 * edge]), 4096, 4096)
    assert times_s[1] == pytest.approx(times_s[0], rel=1e-6)
    model = [analytic_time_s(lookup.device, "gemm", (), (m, 4096, 4096)) for m in (edge, 2 * edge)]
    assert times_s[2] / times_s[0] == pytest.approx(model[1] / model[0], rel=1e-12)
    assert codes.tolist() == [MEASURED, DERIVED, DERIVED]


@pytest.mark.parametrize("size", [65_536, 32])
def test_gemm_widths_join_at_the_edge_of_the_grid(size):
    lookup = LOOKUPS["h100-sxm"]
    rows = np.array([1.0, 64.0, 1000.0])
    edge, _ = lookup.gemm(rows, size, 4096)
    beyond, codes = lookup.gemm(rows, size + (1 if size > 32 else -1), 4096)
    np.testing.assert_allclose(beyond, edge, rtol=1e-2 if size > 32 else 5e-2)
    assert (codes == DERIVED).all()


def test_long_contexts_join_at_the_last_measured_one():
    lookup = LOOKUPS["h100-sxm"]
    batch = np.array([1.0])
    last, at_edge = lookup.attention((16, 2, 256, 0), batch, 65_536)
    just, outside = lookup.attention((16, 2, 256, 0), batch, 65_537)
    assert just == pytest.approx(last, rel=1e-4)
    assert (at_edge[0], outside[0]) == (MEASURED, DERIVED)


@settings(max_examples=60, deadline=None)
@given(devices, st.sampled_from(["gemm", "attention", "experts", "delta_net", "all_reduce"]))
def test_progress_rises_along_every_axis(device, kind):
    profile = DATA.devices[device]
    table = profile.tables[kind]
    shape = tuple(table.shapes[len(table.shapes) // 2]) if table.shapes.shape[1] else ()
    for axis in range(len(table.points)):
        sizes: list = [line[len(line) // 2] for line in table.points]
        sizes[axis] = np.geomspace(table.points[axis][0], table.points[axis][-1], 500)
        marks = progress(profile, kind, profile.warps[kind], shape, sizes)
        assert (np.diff(marks) > 0).all()


def test_without_a_warp_interpolation_is_log_linear():
    line = measured_line(
        np.array([1.0, 4.0, 16.0]),
        np.array([1e-6, np.nan, 4e-6]),
        lambda size: progress(DATA.devices["l40s"], "delta_net", PLAIN, (), (size,)),
        lambda size: size,
    )
    assert line is not None
    times_s, codes = line(np.array([4.0]))
    assert times_s[0] == pytest.approx(2e-6)
    assert codes.tolist() == [MEASURED]
    assert measured_line(np.ones(1), np.array([np.nan]), np.log, np.log) is None


def test_between_a_measured_and_a_derived_point_the_weaker_decides():
    line = Line(
        size=np.array([1.0, 2.0, 3.0]),
        time_s=np.ones(3),
        code=np.array([MEASURED, DERIVED, MEASURED]),
        progress=np.log,
        model_s=lambda size: size,
    )
    codes = line(np.array([1.0, 1.5, 2.0, 2.5, 3.0, 4.0]))[1]
    assert codes.tolist() == [MEASURED, DERIVED, DERIVED, DERIVED, MEASURED, DERIVED]


def test_a_single_point_is_continued_by_the_model():
    table = KernelTable(
        kind="delta_net",
        shapes=np.array([[16, 32, 128, 128]]),
        points=(np.array([4.0]),),
        time_s=np.array([[1e-4]]),
        dtype="float32",
        origin="one point",
    )
    device = dataclasses.replace(
        DATA.devices["l40s"], tables={"delta_net": table}, warps={}, efficiencies={}
    )
    times_s, codes = KernelLookup(device).plain(
        "delta_net", (16, 32, 128, 128), np.array([4.0, 4000.0, 8000.0])
    )
    assert times_s[0] == 1e-4
    assert times_s[2] == pytest.approx(2 * times_s[1])
    assert codes.tolist() == [MEASURED, DERIVED, DERIVED]


def test_without_tables_the_answer_is_analytic():
    device = DeviceProfile(
        device="paper-gpu",
        bandwidth_bytes_per_s=1e12,
        bf16_flop_per_s=1e14,
        link_bandwidth_bytes_per_s=1e11,
        multiprocessors=1,
    )
    lookup = KernelLookup(device)
    for times_s, codes in (
        lookup.gemm(np.array([1.0, 8.0]), 4096, 4096),
        lookup.attention((16, 2, 256, 0), np.array([1.0, 8.0]), 4096),
        lookup.plain("all_reduce", (2,), np.array([1.0, 8.0])),
    ):
        assert (codes == ANALYTIC).all()
        assert (times_s > 0).all()


def test_a_warp_follows_the_tile_edge():
    """A held-out 256 lies with 225 below its tile's edge; 257 lies with 512 above it."""
    device = dataclasses.replace(DATA.devices["a100-sxm"])
    warp: Warp = device.warps["gemm"]
    marks = progress(device, "gemm", warp, (), (np.array([225.0, 256, 257, 512]), 4096.0, 4096.0))
    plain = np.log([225.0, 256, 257, 512])
    at_256 = (marks[1] - marks[0]) / (marks[2] - marks[0])
    assert at_256 < (plain[1] - plain[0]) / (plain[2] - plain[0])
    at_257 = (marks[2] - marks[1]) / (marks[3] - marks[1])
    assert at_257 > (plain[2] - plain[1]) / (plain[3] - plain[1])
