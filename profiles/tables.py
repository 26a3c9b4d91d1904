"""Lookup: the latency of one kernel on one device, from its tables where they reach.

A grid of several axes is cut to a line along the axis the planner sweeps (GEMM rows, batch,
tokens): the other sizes are interpolated first, at every point of that axis. Lines are kept, so a
sweep costs one interpolation.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from weavejax.models.specs import OperatorSpec
from weavejax.plan import Parallelism
from weavejax.profiles.analytic import analytic_time_s
from weavejax.profiles.lines import Line, measured_line
from weavejax.profiles.operator_key import operator_key
from weavejax.profiles.operator_times import OperatorTimes
from weavejax.profiles.schema import ANALYTIC, DERIVED, MEASURED, DeviceProfile, KernelTable
from weavejax.profiles.shapes import AttentionRule, attention_rule, nearest_shape
from weavejax.profiles.warp import PLAIN, progress

Answer = tuple[np.ndarray, np.ndarray]
"""(seconds, source codes)"""


class KernelLookup:
    """Answers for one device; keeps the lines it has cut.

    >>> from weavejax.profiles import load_profile
    >>> lookup = KernelLookup(load_profile("nvidia-measured").data.devices["h100-sxm"])
    >>> times_s, codes = lookup.gemm(np.array([1.0, 64.0]), 4096, 4096)
    >>> codes.tolist()
    [0, 0]
    """

    def __init__(self, device: DeviceProfile) -> None:
        self.device = device
        self._gemm_line = functools.lru_cache(4096)(self._cut_gemm)
        self._attention_line = functools.lru_cache(4096)(self._cut_attention)
        self._plain_line = functools.lru_cache(4096)(self._cut_plain)

    def gemm(self, rows: np.ndarray, n: int, k: int) -> Answer:
        """``rows x k`` times ``k x n``."""
        table = self.device.tables.get("gemm")
        if table is None:
            return self._analytic("gemm", (), (rows, n, k))
        return self._gemm_line(n, k)(rows)

    def attention(self, shape: Sequence[int], batch: np.ndarray, context: int) -> Answer:
        """Decode attention; ``shape`` is (query heads, key/value heads, head_dim, window)."""
        table = self.device.tables.get("attention")
        rule = None if table is None else attention_rule(table, tuple(shape), context)
        if rule is None:
            return self._analytic("attention", shape, (batch, context))
        line = self._attention_line(rule)
        time_s, code = line(batch * rule.batch_factor)
        if rule.rescale:
            wanted = analytic_time_s(self.device, "attention", shape, (batch, context))
            have = analytic_time_s(
                self.device, "attention", rule.shape, (batch * rule.batch_factor, rule.context)
            )
            time_s = time_s * wanted / have
        return time_s, code if rule.exact else np.maximum(code, DERIVED)

    def plain(self, kind: str, shape: Sequence[int], size: np.ndarray) -> Answer:
        """Kernels of one axis: ``experts``, ``delta_net`` and ``all_reduce``."""
        table = self.device.tables.get(kind)
        if table is None or not len(table.shapes):
            return self._analytic(kind, shape, (size,))
        found = nearest_shape(table.shapes, tuple(shape))
        time_s, code = self._plain_line(kind, found)(size)
        if found != tuple(shape):
            wanted = analytic_time_s(self.device, kind, shape, (size,))
            time_s = time_s * wanted / analytic_time_s(self.device, kind, found, (size,))
            code = np.maximum(code, DERIVED)
        return time_s, code

    def timed(self, operator: OperatorSpec, group: Parallelism) -> OperatorTimes | None:
        """The operator timed whole under this parallelism, or None."""
        known = self.device.operators
        return known.get(operator_key(operator, group)) if known else None

    def _analytic(self, kind: str, shape: Sequence[int], sizes: Sequence[object]) -> Answer:
        time_s = np.asarray(analytic_time_s(self.device, kind, shape, sizes), dtype=float)
        return time_s, np.full(time_s.shape, ANALYTIC)

    def _progress(self, kind: str, shape: Sequence[int], sizes: Sequence[object]) -> np.ndarray:
        warp = self.device.warps.get(kind, PLAIN)
        return progress(self.device, kind, warp, shape, sizes)

    def _cut_plain(self, kind: str, shape: tuple[int, ...]) -> Line:
        table = self.device.tables[kind]
        line = measured_line(
            table.points[0],
            table.time_s[table.shape_index(*shape)],
            lambda size: self._progress(kind, shape, (size,)),
            lambda size: analytic_time_s(self.device, kind, shape, (size,)),
        )
        assert line is not None, "the importer keeps measured shapes only"
        return line

    def _cut_attention(self, rule: AttentionRule) -> Line:
        """Along batch at ``rule.context``: every batch row is interpolated over context first."""
        table, shape = self.device.tables["attention"], rule.shape
        grid = np.asarray(table.time_s[table.shape_index(*shape)], dtype=float)
        measured_rows = np.isfinite(grid).any(1)
        batches, contexts = table.points[0][measured_rows], table.points[1]
        time_s, code = self._at_context(shape, batches, contexts, grid[measured_rows], rule.context)
        return Line(
            size=batches,
            time_s=time_s,
            code=code,
            progress=lambda size: self._progress("attention", shape, (size, rule.context)),
            model_s=lambda size: analytic_time_s(
                self.device, "attention", shape, (size, rule.context)
            ),
        )

    def _at_context(
        self,
        shape: tuple[int, ...],
        batches: np.ndarray,
        contexts: np.ndarray,
        grid: np.ndarray,
        context: int,
    ) -> Answer:
        """What a :class:`Line` over context says, for all batch rows of a ragged grid at once."""
        known, rows = np.isfinite(grid), np.arange(len(batches))
        columns = np.arange(len(contexts))
        left = np.where(known & (contexts <= context), columns, -1).max(1)
        right = np.where(known & (contexts >= context), columns, len(contexts)).min(1)
        outside = (left < 0) | (right == len(contexts))
        left, right = np.where(left < 0, right, left), np.where(right == len(contexts), left, right)
        first, last, here = (
            self._progress("attention", shape, (batches, at))
            for at in (contexts[left], contexts[right], float(context))
        )
        apart = left != right
        weight = np.where(apart, (here - first) / np.where(apart, last - first, 1.0), 0.0)
        time_s = grid[rows, left] * (grid[rows, right] / grid[rows, left]) ** weight
        edge = analytic_time_s(self.device, "attention", shape, (batches, contexts[left]))
        model = analytic_time_s(self.device, "attention", shape, (batches, float(context)))
        time_s = np.where(outside, time_s * model / edge, time_s)
        return time_s, np.where(outside, DERIVED, MEASURED)

    def _cut_gemm(self, n: int, k: int) -> Line:
        """Along rows at (n, k): every row count is interpolated over n, then over k."""
        table = self.device.tables["gemm"]
        rows, widths, depths = table.points
        inner_n = float(np.clip(n, widths[0], widths[-1]))
        inner_k = float(np.clip(k, depths[0], depths[-1]))
        (below, above), (low, high) = _bracket(widths, inner_n), _bracket(depths, inner_k)
        # progress at (n below, here, above) x (k low, here, high), for every row count
        marks = self._progress(
            "gemm",
            (),
            (
                rows,
                np.array([widths[below], inner_n, widths[above]])[:, None, None],
                np.array([depths[low], inner_k, depths[high]])[:, None],
            ),
        )
        at_low, at_high = (
            _mix(marks[:, side], *(self._gemm_corner(table, i, j) for i in (below, above)))
            for side, j in ((0, low), (2, high))
        )
        time_s = _mix(marks[1], at_low, at_high)
        known = np.isfinite(table.time_s[0][:, [below, above]][:, :, [low, high]]).all((1, 2))
        code = np.where(known, MEASURED, DERIVED)
        if (inner_n, inner_k) != (n, k):
            edge = analytic_time_s(self.device, "gemm", (), (rows, inner_n, inner_k))
            time_s = time_s * analytic_time_s(self.device, "gemm", (), (rows, n, k)) / edge
            code = np.full(len(rows), DERIVED)
        return Line(
            size=rows,
            time_s=time_s,
            code=code,
            progress=lambda size: self._progress("gemm", (), (size, float(n), float(k))),
            model_s=lambda size: analytic_time_s(self.device, "gemm", (), (size, n, k)),
        )

    def _gemm_corner(self, table: KernelTable, n_index: int, k_index: int) -> np.ndarray:
        """Times over rows at one grid point; a hole is scaled from the next smaller k."""
        rows, widths, depths = table.points
        time_s = np.asarray(table.time_s[0, :, n_index, k_index], dtype=float)
        if np.isfinite(time_s).all() or k_index == 0:
            return time_s
        smaller = self._gemm_corner(table, n_index, k_index - 1)
        n, k, less = widths[n_index], depths[k_index], depths[k_index - 1]
        ratio = analytic_time_s(self.device, "gemm", (), (rows, n, k)) / analytic_time_s(
            self.device, "gemm", (), (rows, n, less)
        )
        return np.where(np.isfinite(time_s), time_s, smaller * ratio)


def _mix(marks: np.ndarray, first_s: np.ndarray, last_s: np.ndarray) -> np.ndarray:
    """Between two grid points; ``marks`` is the progress at the first, here and at the last."""
    first, here, last = marks
    apart = last > first
    weight = np.where(apart, (here - first) / np.where(apart, last - first, 1.0), 0.0)
    return first_s * (last_s / first_s) ** np.clip(weight, 0.0, 1.0)


def _bracket(points: np.ndarray, value: float) -> tuple[int, int]:
    """Indices of the grid points around a value inside the grid; equal on a point."""
    above = int(np.searchsorted(points, value))
    return (above, above) if points[above] == value else (above - 1, above)
