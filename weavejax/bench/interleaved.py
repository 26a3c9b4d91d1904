"""Several ways to do the same work, timed in turns, so that a busy machine slows all alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

Subject = Callable[[], float]
"""Does the work once and returns seconds per unit of it."""
Progress = Callable[[str, int, int], None]


def median_times_s(
    subjects: Mapping[str, Subject],
    rounds: int,
    progress: Progress = lambda what, done, total: None,
) -> dict[str, float]:
    """Median seconds of every subject over ``rounds`` rounds, each of which runs all in turn.

    Examples:
        >>> median_times_s({"a": lambda: 1.0, "b": lambda: 2.0}, 3)
        {'a': 1.0, 'b': 2.0}
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    times: dict[str, list[float]] = {name: [] for name in subjects}
    for done in range(rounds):
        for name, subject in subjects.items():
            times[name].append(subject())
        progress("rounds", done + 1, rounds)
    return {name: statistics.median(values) for name, values in times.items()}
