"""Operators measured whole: seconds of one operator of one model over rows and context.

A kernel table answers for any model with its shapes; these answer for the operator that was
timed, everything it does included, under the parallelism it was timed with. What is timed is a
stage of that one operator as it runs inside a model's decode iteration.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FIRST, NEXT = range(2)
"""Positions along the last axis of :attr:`OperatorTimes.time_s`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OperatorTimes:
    """One operator over a grid.

    Raises:
        ValueError: points that do not rise, arrays of other shapes, or a time that is negative.

    Examples:
        >>> times = OperatorTimes(
        ...     name="ffn", rows=np.array([1.0, 4.0]), contexts=np.array([0.0]),
        ...     time_s=np.array([[[2e-3, 1e-3]], [[4e-3, 3e-3]]]), spread=np.zeros((2, 1)))
        >>> times.at(np.array([2.5]), 512, microbatches=2)
        (array([0.0025]), array([ True]))
    """

    name: str
    """for people: ``ffn of smollm2-135m-instruct``"""
    rows: np.ndarray
    """rising row counts of one replica in one microbatch"""
    contexts: np.ndarray
    """rising contexts; the single value 0 where the context does not matter"""
    time_s: np.ndarray
    """(rows, contexts, 2) seconds: of a stage's first microbatch in an iteration, and of one that
    follows it and may find weights in a cache; NaN where nothing was measured"""
    spread: np.ndarray
    """(rows, contexts) relative spread of the repetitions (interquartile range / median)"""

    def __post_init__(self) -> None:
        for name in ("rows", "contexts"):
            line = getattr(self, name)
            if line.ndim != 1 or not len(line) or line[0] < 0 or not (np.diff(line) > 0).all():
                raise ValueError(f"{name} of {self.name} must rise from at least 0, got {line}")
        grid = (len(self.rows), len(self.contexts))
        if self.time_s.shape != (*grid, 2) or self.spread.shape != grid:
            raise ValueError(
                f"times of {self.name} have shape (rows, contexts, 2) = {(*grid, 2)} and spreads "
                f"{grid}, got {self.time_s.shape} and {self.spread.shape}"
            )
        bad = ~np.isnan(self.time_s) & ~(np.isfinite(self.time_s) & (self.time_s >= 0))
        if bad.any():
            raise ValueError(
                f"times of {self.name} must be at least 0 seconds, got {self.time_s[bad][0]}"
            )

    def at(
        self, rows: np.ndarray, context: int, *, microbatches: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """(mean seconds of one of ``microbatches`` executions, whether inside the grid).

        Linear between measured points; outside, the value at the nearest edge.
        """
        mean_s = (self.time_s[..., FIRST] + (microbatches - 1) * self.time_s[..., NEXT]) / (
            microbatches
        )
        known = np.isfinite(mean_s)
        measured = known.any(axis=1)
        at_context = np.array(
            [
                np.interp(context, self.contexts[there], line[there])
                for line, there in zip(mean_s[measured], known[measured], strict=True)
            ]
        )
        low, high = self.contexts[[0, -1]]
        within = high == 0 or low <= context <= high
        counts = self.rows[measured]
        inside = within & (rows >= counts[0]) & (rows <= counts[-1])
        return np.interp(rows, counts, at_context), inside

    def nearest(self, rows: np.ndarray, context: int) -> tuple[np.ndarray, int]:
        """The point of the grid's hull that answers for a point outside."""
        low, high = self.contexts[[0, -1]]
        at = context if high == 0 else int(np.clip(context, low, high))
        return np.clip(rows, self.rows[0], self.rows[-1]), at


def merge_times(old: OperatorTimes | None, new: OperatorTimes) -> OperatorTimes:
    """Both grids in one; where both measured a point, ``new`` counts."""
    if old is None:
        return new
    rows, contexts = np.union1d(old.rows, new.rows), np.union1d(old.contexts, new.contexts)
    time_s = np.full((len(rows), len(contexts), 2), np.nan)
    spread = np.full((len(rows), len(contexts)), np.nan)
    for part in (old, new):
        where = np.ix_(np.searchsorted(rows, part.rows), np.searchsorted(contexts, part.contexts))
        there = np.all(np.isfinite(part.time_s), axis=-1)
        time_s[where] = np.where(np.expand_dims(there, -1), part.time_s, time_s[where])
        spread[where] = np.where(there, part.spread, spread[where])
    return OperatorTimes(name=new.name, rows=rows, contexts=contexts, time_s=time_s, spread=spread)
