"""Held-out grid lines: the interpolation beats plain log-linear interpolation of time."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from weavejax.profiles import load_profile
from weavejax.profiles.holdout import format_report, holdout_report, holdout_row, main
from weavejax.profiles.lines import measured_line
from weavejax.profiles.warp import progress

DATA = load_profile().data
PLAIN_PERCENT = {  # median and 95th percentile of plain log-linear, measured beforehand
    ("h100-sxm", "m"): (2.8, 17.7),
    ("h100-sxm", "n"): (3.3, 16.6),
    ("a100-sxm", "m"): (4.1, 22.9),
    ("a100-sxm", "n"): (5.4, 25.3),
    ("l40s", "m"): (3.6, 27.9),
    ("l40s", "n"): (6.3, 32.2),
}


@pytest.mark.parametrize("device", sorted(DATA.devices))
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gemm_beats_plain_log_linear_on_every_device_and_axis(device, axis):
    profile = DATA.devices[device]
    row = holdout_row(profile, profile.tables["gemm"], axis)
    assert row.points > 30_000
    assert row.median < row.plain_median
    assert row.p95 < row.plain_p95
    known = PLAIN_PERCENT.get((device, row.axis))
    if known is not None:
        assert (100 * row.plain_median, 100 * row.plain_p95) == pytest.approx(known, abs=0.06)
        assert (100 * row.median, 100 * row.p95) < known


def test_the_report_says_what_the_lookup_does():
    """The error of one held-out point, once by the report and once by a line without it."""
    profile = DATA.devices["a100-sxm"]
    table = profile.tables["gemm"]
    column = dataclasses.replace(
        table,
        points=(table.points[0][:3], table.points[1][4:5], table.points[2][7:8]),
        time_s=table.time_s[:, :3, 4:5, 7:8],
    )
    n, k = column.points[1][0], column.points[2][0]
    line = measured_line(
        column.points[0][[0, 2]],
        column.time_s[0, [0, 2], 0, 0],
        lambda size: progress(profile, "gemm", profile.warps["gemm"], (), (size, n, k)),
        lambda size: size,
    )
    assert line is not None
    predicted = line(column.points[0][1:2])[0][0]
    row = holdout_row(profile, column, 0)
    assert row.points == 1
    assert row.median == pytest.approx(abs(predicted / column.time_s[0, 1, 0, 0] - 1), rel=1e-9)


def test_report_covers_every_device_kernel_and_axis(capsys):
    rows = holdout_report(DATA)
    assert len(rows) == len(DATA.devices) * 8
    text = format_report(rows)
    assert all(name in text for name in (*DATA.devices, "gemm", "context", "elements"))
    assert all(row.better for row in rows), text
    assert main([]) == 0
    assert capsys.readouterr().out.strip() == text
    assert np.isfinite([row.p95 for row in rows]).all()
