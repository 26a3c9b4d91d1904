"""From round trips of plans that move often to what a move costs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

import numpy as np

from weavejax.profiles.schema import LinkFit

SERIAL, SATURATED = 1, 4
"""Microbatches with which nothing overlaps, and with which the busiest group always computes."""
_LONGEST_S, _HALVINGS, _TRIED = 0.1, 50, 201
Which = tuple[str, int]
"""A plan and its microbatches."""


def fit_link(
    predict: Callable[[Which, LinkFit], float],
    measured_s: Mapping[Which, float],
    bandwidth_bytes_per_s: float,
) -> LinkFit:
    """Latency of a move, and what it keeps each end busy.

    The latency is what makes the round trips of :data:`SERIAL` microbatches right, on average over
    their plans; the busy time makes those of more microbatches as right as one number can.

    Args:
        predict: (plan and microbatches, link) to the round trip; grows with latency and busy time.
        measured_s: plans and microbatches, :data:`SERIAL` and more, to the round trip.
        bandwidth_bytes_per_s: of the link.

    Examples:
        >>> def predict(which, link):  # two groups, a second of stages each
        ...     _, microbatches = which
        ...     if microbatches == SERIAL:
        ...         return 2 * (1 + link.latency_s)
        ...     return microbatches * (1 + 2 * link.busy_s)
        >>> measured_s = {("halves", 1): 2.08, ("halves", 2): 2.04, ("halves", 4): 4.08}
        >>> link = fit_link(predict, measured_s, 1e9)
        >>> round(link.latency_s, 4), round(link.busy_s, 4)
        (0.04, 0.01)
    """

    def link(latency_s: float, busy_s: float) -> LinkFit:
        return LinkFit(
            bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=latency_s, busy_s=busy_s
        )

    def alone(which: Which) -> float:
        low_s, high_s = 0.0, _LONGEST_S
        for _ in range(_HALVINGS):
            middle_s = (low_s + high_s) / 2
            if predict(which, link(middle_s, 0.0)) < measured_s[which]:
                low_s = middle_s
            else:
                high_s = middle_s
        return (low_s + high_s) / 2

    latency_s = statistics.mean(alone(which) for which in measured_s if which[1] == SERIAL)

    def misses(busy_s: float) -> float:
        return sum(
            (predict(which, link(latency_s, busy_s)) / seconds - 1) ** 2
            for which, seconds in measured_s.items()
            if which[1] != SERIAL
        )

    tried_s = np.linspace(0, latency_s / 2, _TRIED).tolist()
    return link(latency_s, min(tried_s, key=misses))


def fit_bandwidth(moves: Mapping[float, float]) -> float:
    """Bytes of a move to its seconds, to bytes per second: a line, or no limit where it falls.

    Examples:
        >>> round(fit_bandwidth({1e4: 2e-5, 2e4: 3e-5, 4e4: 5e-5}))
        1000000000
    """
    slope, _ = np.polyfit(list(moves), list(moves.values()), 1)
    return float(1 / max(slope, 1e-12))
