"""One measured line: latency against one size, everything else fixed.

Inside, the warp of :mod:`weavejax.profiles.warp` interpolates between neighbours: exact at
measured points, monotone between them (rising wherever the measurements rise; where they fall by
noise, exactness wins and the answer falls with them). Outside there is no extrapolation of the
measurements: the analytic model takes over, scaled to agree at the edge, and the answer is tagged
``derived``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from weavejax.profiles.schema import DERIVED, MEASURED

SizeFunction = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """Measured points of one axis with the two models that continue them.

    Examples:
        >>> line = Line(
        ...     size=np.array([1.0, 4.0]), time_s=np.array([1e-5, 4e-5]),
        ...     code=np.zeros(2, int), progress=np.log, model_s=lambda size: 1e-5 * size)
        >>> times_s, codes = line(np.array([2.0, 8.0]))
        >>> np.round(times_s * 1e5, 6).tolist(), codes.tolist()
        ([2.0, 8.0], [0, 1])
    """

    size: np.ndarray
    """(points,) rising"""
    time_s: np.ndarray
    """(points,) seconds, all finite"""
    code: np.ndarray
    """(points,) source code of each point"""
    progress: SizeFunction
    """rising in size"""
    model_s: SizeFunction
    """analytic seconds"""

    def __call__(self, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(seconds, source codes) at each size."""
        size = np.asarray(size, dtype=float)
        edge = np.clip(size, self.size[0], self.size[-1])
        if len(self.size) == 1:
            time_s, code = np.full(size.shape, self.time_s[0]), np.full(size.shape, self.code[0])
        else:
            time_s, code = self._inside(edge)
        outside = edge != size
        if outside.any():
            time_s = np.where(outside, time_s * self.model_s(size) / self.model_s(edge), time_s)
            code = np.where(outside, np.maximum(code, DERIVED), code)
        return time_s, code

    @functools.cached_property
    def _marks(self) -> np.ndarray:
        return self.progress(self.size)

    def _inside(self, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        left = np.clip(np.searchsorted(self.size, size, side="right") - 1, 0, len(self.size) - 2)
        right = left + 1
        marks = self._marks
        weight = (self.progress(size) - marks[left]) / (marks[right] - marks[left])
        weight = np.clip(weight, 0.0, 1.0)
        time_s = self.time_s[left] * (self.time_s[right] / self.time_s[left]) ** weight
        # a measured point stands by itself; between two points the weaker one decides
        right_end, left_end = size == self.size[right], size == self.size[left]
        time_s = np.where(right_end, self.time_s[right], time_s)
        code = np.maximum(self.code[left], self.code[right])
        code = np.where(left_end, self.code[left], np.where(right_end, self.code[right], code))
        return time_s, code


def measured_line(
    size: np.ndarray, time_s: np.ndarray, progress: SizeFunction, model_s: SizeFunction
) -> Line | None:
    """A line of the finite points, or None where there are none."""
    known = np.isfinite(time_s)
    if not known.any():
        return None
    return Line(
        size=np.asarray(size, dtype=float)[known],
        time_s=np.asarray(time_s, dtype=float)[known],
        code=np.full(int(known.sum()), MEASURED),
        progress=progress,
        model_s=model_s,
    )
