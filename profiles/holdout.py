"""Held-out error: leave one grid line out, predict it from its neighbours, compare.

Every interior point of an axis is predicted from the two neighbouring points of that axis, as if
its whole grid line had not been measured, by the profile's interpolation and by plain log-linear
interpolation of time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weavejax.profiles.schema import KERNEL_AXES, DeviceProfile, KernelTable, ProfileData
from weavejax.profiles.warp import PLAIN, progress


@dataclass(frozen=True, kw_only=True)
class HoldoutRow:
    """Errors of one axis of one kernel on one device, as fractions of the measured time."""

    device: str
    kernel: str
    axis: str
    points: int
    median: float
    p95: float
    plain_median: float
    plain_p95: float

    @property
    def better(self) -> bool:
        """Below plain log-linear interpolation on the median and on the 95th percentile."""
        return self.median < self.plain_median and self.p95 < self.plain_p95


def holdout_report(data: ProfileData) -> list[HoldoutRow]:
    """One row per device, kernel and axis; about a second per device.

    Examples:
        >>> from weavejax.profiles import load_profile
        >>> rows = holdout_report(load_profile("nvidia-measured").data)
        >>> all(row.better for row in rows if row.kernel == "gemm")
        True
    """
    return [
        holdout_row(device, device.tables[kind], axis)
        for device in data.devices.values()
        for kind in KERNEL_AXES
        if kind in device.tables
        for axis in range(len(KERNEL_AXES[kind][1]))
    ]


def holdout_row(device: DeviceProfile, table: KernelTable, axis: int) -> HoldoutRow:
    """Errors along one axis of one table."""
    warp = device.warps.get(table.kind, PLAIN)
    shape, sizes = _meshes(table)
    marks = np.broadcast_to(progress(device, table.kind, warp, shape, sizes), table.time_s.shape)
    plain = np.broadcast_to(np.log(sizes[axis]), table.time_s.shape)
    ours = _errors(table.time_s, marks, 1 + axis)
    theirs = _errors(table.time_s, plain, 1 + axis)
    return HoldoutRow(
        device=device.device,
        kernel=table.kind,
        axis=KERNEL_AXES[table.kind][1][axis],
        points=len(ours),
        median=float(np.median(ours)),
        p95=float(np.percentile(ours, 95)),
        plain_median=float(np.median(theirs)),
        plain_p95=float(np.percentile(theirs, 95)),
    )


def _meshes(table: KernelTable) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Shape columns and sizes, shaped to broadcast over the table."""
    axes = len(table.points)
    shape = [
        table.shapes[:, column].reshape((-1,) + (1,) * axes)
        for column in range(table.shapes.shape[1])
    ]
    sizes = [
        line.reshape((1,) * (1 + axis) + (-1,) + (1,) * (axes - axis - 1))
        for axis, line in enumerate(table.points)
    ]
    return shape, sizes


def _errors(time_s: np.ndarray, marks: np.ndarray, axis: int) -> np.ndarray:
    """|predicted / measured - 1| of every point with two measured neighbours along ``axis``."""
    log_s = np.moveaxis(np.log(time_s.astype(float)), axis, 0)
    marks = np.moveaxis(marks, axis, 0)
    weight = (marks[1:-1] - marks[:-2]) / (marks[2:] - marks[:-2])
    error = np.abs(np.expm1(log_s[:-2] + (log_s[2:] - log_s[:-2]) * weight - log_s[1:-1]))
    return error[np.isfinite(error)]


def format_report(rows: Sequence[HoldoutRow]) -> str:
    """A table of the report: errors in per cent, plain log-linear beside ours."""
    lines = [
        f"{'device':<10} {'kernel':<11} {'axis':<9} {'points':>7} {'median':>7} {'p95':>7}"
        f" {'plain':>7} {'p95':>7}"
    ]
    lines += [
        f"{row.device:<10} {row.kernel:<11} {row.axis:<9} {row.points:>7} {row.median:>7.2%}"
        f" {row.p95:>7.2%} {row.plain_median:>7.2%} {row.plain_p95:>7.2%}"
        f"{'' if row.better else '  not better'}"
        for row in rows
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: print the report of a shipped profile or a profile file."""
    from weavejax.profiles import load_profile

    parser = argparse.ArgumentParser(prog="python -m weavejax.profiles.holdout")
    parser.add_argument("profile", nargs="?", default="nvidia-measured")
    options = parser.parse_args(arguments)
    print(format_report(holdout_report(load_profile(options.profile).data)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
