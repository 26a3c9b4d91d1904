"""From timed walks over a model to what its operators and stages take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from weavejax.measure.typical import typical


@dataclass(frozen=True, kw_only=True)
class Point:
    """What one grid point measured."""

    time_s: dict[str, tuple[float, float]]
    """operator key to seconds as a stage of its own: first microbatch, mean of the next ones"""
    spread: dict[str, float]
    stage_overhead_s: float
    """what a longer stage saves for every boundary it does not have"""
    residual: float
    """largest relative error of a walk's time under these"""
    move_s: float | None = None
    """a move to another device of the process, per microbatch; None where there is no other"""
    move_bytes: float = 0.0
    """its mean size"""


@dataclass
class Samples:
    """Seconds of walks, one entry a sample."""

    walk_s: list[list[float]]
    """of every length"""
    steps_s: list[np.ndarray] = field(default_factory=list)
    """``[stages + 1, microbatches]`` every call waited for, the head last"""
    alternating_s: list[float] = field(default_factory=list)

    def last(self, count: int | None) -> Samples:
        """The last samples of every kind."""
        if count is None:
            return self
        return Samples(
            walk_s=[times[-count:] for times in self.walk_s],
            steps_s=self.steps_s[-count:],
            alternating_s=self.alternating_s[-count:],
        )


def solve_point(
    samples: Samples, counts: Sequence[int], keys: Sequence[str], end_keys: Sequence[str]
) -> Point:
    """Typical samples to seconds per operator and per stage.

    With ``n`` stages a walk takes ``a + n * overhead``: a line through the lengths. Waiting for
    every call costs the same for each, and that is taken off again.

    Args:
        samples: of the walks.
        counts: stage executions of each walk.
        keys: operator keys in model order.
        end_keys: of embed and head, which run with the first and after the last of them.
    """
    walk_s = np.array([typical(times) for times in samples.walk_s])
    stages = np.array(counts, dtype=float)
    slope, _ = np.polyfit(stages, walk_s, 1)
    overhead = max(float(slope), 0.0)
    every = np.array(samples.steps_s)  # [samples, stages + 1, microbatches]
    waiting = (typical(every.sum((1, 2))) - walk_s[0]) / every[0].size
    embed_key, head_key = end_keys
    places: dict[str, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    time_s, spread = {}, {}
    for key, where in places.items():
        inner = [place for place in where if place > 0] or where  # the first call embeds too
        by_sample = every[:, inner].mean(1)
        time_s[key] = _first_and_next(typical(by_sample) - waiting)
        low, middle, high = np.percentile(by_sample.mean(1), (25, 50, 75))
        spread[key] = float((high - low) / middle)
    alone = every[:, [place for place in places[keys[0]] if place > 0] or [0]].mean(1)
    embed = typical(every[:, 0]) - typical(alone)
    head = typical(every[:, -1]) - waiting
    for key, values in ((embed_key, embed), (head_key, head)):
        time_s[key] = _first_and_next(values)
        spread[key] = spread[keys[0]]
    line = walk_s[0] + overhead * (stages - stages[0])
    return Point(
        time_s=time_s,
        spread=spread,
        stage_overhead_s=overhead,
        residual=float(np.abs(line / walk_s - 1).max()),
    )


def _first_and_next(seconds: np.ndarray) -> tuple[float, float]:
    """Of every microbatch; a single one counts as both."""
    first, after = seconds[0], seconds[1:].mean() if len(seconds) > 1 else seconds[0]
    return float(max(first, 1e-9)), float(max(after, 1e-9))
