"""From round trips of a plan that moves often to what a move costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weavejax.profiles.schema import LinkFit

SERIAL, SATURATED = 1, 4
"""Microbatches with which nothing overlaps, and with which the busiest group always computes."""
_LONGEST_S, _HALVINGS = 0.1, 50


def fit_move(
    predict: Callable[[int, float, float], float], measured_s: Mapping[int, float]
) -> tuple[float, float]:
    """Latency of a move and what it keeps each end busy, in seconds.

    Args:
        predict: (microbatches, latency, busy) to the round trip; grows with the last two.
        measured_s: :data:`SERIAL` and :data:`SATURATED` microbatches to the round trip.

    Examples:
        >>> def predict(microbatches, latency_s, busy_s):  # two groups, a second of stages each
        ...     return 2 * (1 + latency_s) if microbatches == SERIAL else 4 * (1 + 2 * busy_s)
        >>> latency_s, busy_s = fit_move(predict, {SERIAL: 2.08, SATURATED: 4.08})
        >>> round(latency_s, 4), round(busy_s, 4)
        (0.04, 0.01)
    """
    latency_s = _root(lambda x: predict(SERIAL, x, 0.0) - measured_s[SERIAL], _LONGEST_S)
    busy_s = _root(
        lambda x: predict(SATURATED, latency_s, x) - measured_s[SATURATED], latency_s / 2
    )
    return latency_s, busy_s


def fit_link(moves: Sequence[tuple[float, tuple[float, float]]]) -> LinkFit:
    """Moves of two sizes to a link: a line through the latencies, the mean of the busy times.

    Args:
        moves: of the smaller and the larger one: bytes, and what :func:`fit_move` found.

    Examples:
        >>> link = fit_link([(1e3, (3e-4, 1e-4)), (2e3, (4e-4, 2e-4))])
        >>> f"{link.bandwidth_bytes_per_s:.0f} {link.latency_s:.4f} {link.busy_s:.5f}"
        '10000000 0.0002 0.00015'
    """
    (small, (first_s, _)), (large, (last_s, _)) = moves
    slope = max((last_s - first_s) / (large - small), 1e-12) if large > small else 1e-12
    latency_s = max(min(first_s, first_s - slope * small), 1e-6)
    busy_s = sum(busy for _, (_, busy) in moves) / len(moves)
    return LinkFit(bandwidth_bytes_per_s=1 / slope, latency_s=latency_s, busy_s=busy_s)


def _root(grows: Callable[[float], float], stop: float) -> float:
    """Where a function that grows from 0 to ``stop`` crosses zero, or the nearer end."""
    low, high = 0.0, stop
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if grows(middle) < 0 else (low, middle)
    return (low + high) / 2
