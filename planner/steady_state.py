"""The rate at which a repeating schedule settles, from the states it passes through.

One decode iteration maps the times at which resources become free and microbatches arrive to the
same times one iteration later. The map is max-plus linear, so two theorems apply to the states
``x(0), x(1), ...`` of any start:

- for every p, ``min_j (x_j(r) - x_j(r-p)) / p <= T_rtt <= max_j (x_j(r) - x_j(r-p)) / p``
  (Collatz-Wielandt); where all shifts agree the schedule is periodic and T_rtt is known;
- with n entries, ``T_rtt = max_j min_{k<n} (x_j(n) - x_j(k)) / (n - k)`` (Karp), so n iterations
  always suffice, however long the transient is.

Both are exact. The first ends most schedules after two or three iterations.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

PERIOD_LIMIT = 12
"""Longest period looked for before Karp's formula closes (design section 5)."""

SHIFT_TOLERANCE = 1e-11
"""Relative spread of the shifts below which they are one constant; bounds the error of T_rtt."""


def periodic_round_trip(states_s: NDArray[np.float64]) -> float | None:
    """T_rtt if the last state has shifted by one constant against one of the 12 before it.

    Args:
        states_s: ``[iterations + 1, entries]`` seconds, oldest first.

    Returns:
        Seconds per iteration, or None while no period shows.

    >>> periodic_round_trip(np.array([[0.0, 1.0], [5.0, 7.0], [10.0, 12.0]]))
    5.0
    >>> periodic_round_trip(np.array([[0.0, 0.0], [14.0, 15.0], [29.0, 29.0]]))
    14.5
    """
    last = states_s[-1]
    for period in range(1, min(PERIOD_LIMIT, len(states_s) - 1) + 1):
        shift = last - states_s[-1 - period]
        low, high = float(shift.min()), float(shift.max())
        if high - low <= SHIFT_TOLERANCE * high:
            return 0.5 * (low + high) / period
    return None


def karp_round_trip(states_s: NDArray[np.float64]) -> float:
    """T_rtt by Karp's formula from n + 1 states of n entries.

    Raises:
        ValueError: fewer than n + 1 states.

    >>> karp_round_trip(np.array([[0.0, 0.0], [14.0, 15.0], [29.0, 29.0]]))
    14.5
    """
    entries = states_s.shape[1]
    if len(states_s) <= entries:
        raise ValueError(
            f"Karp's formula needs one state more than entries: {entries + 1}, got {len(states_s)}"
        )
    steps = np.arange(entries, 0, -1, dtype=np.float64)[:, None]
    ratios = (states_s[entries] - states_s[:entries]) / steps
    return float(ratios.min(axis=0).max())


def settled_round_trip(states_s: Iterable[ArrayLike]) -> float:
    """T_rtt from states as they come, taking no more of them than it needs.

    Args:
        states_s: an endless iterable of equally long vectors of seconds; the first is the state
            before the first iteration.

    Returns:
        Seconds per decode iteration in steady state.
    """
    seen: list[NDArray[np.float64]] = []
    for state in states_s:
        seen.append(np.asarray(state, dtype=np.float64))
        if len(seen) > 1:
            rate = periodic_round_trip(np.stack(seen[-PERIOD_LIMIT - 1 :]))
            if rate is not None:
                return rate
        if len(seen) > seen[0].size:
            return karp_round_trip(np.stack(seen))
    raise ValueError(f"the states ended after {len(seen)} iterations, before the schedule settled")
