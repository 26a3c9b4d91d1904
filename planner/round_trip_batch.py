"""Compiled round-trip times of many chains that share their owners.

Chains are laid side by side in lanes of eight, so that every max and add of the recurrence works
on a whole vector register; blocks of lanes run on as many threads as there are cores (the kernel
holds no GIL). The recurrence is that of :mod:`weavejax.planner.round_trip`, the end of each lane
that of :mod:`weavejax.planner.steady_state`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from weavejax.planner.round_trip import check_chain
from weavejax.planner.steady_state import PERIOD_LIMIT, SHIFT_TOLERANCE

LANES = 8
_CHAINS_PER_TASK = 512


def round_trip_times(
    compute_s: ArrayLike, move_s: ArrayLike, owner: Sequence[int], microbatches: int
) -> NDArray[np.float64]:
    """Seconds per decode iteration of each chain; see ``round_trip_time`` for the definition.

    Args:
        compute_s: ``[chains, N]`` seconds.
        move_s: ``[chains, N]`` seconds.
        owner: ``[N]`` device group of each stage occurrence, the same for all chains.
        microbatches: the same for all chains.

    Returns:
        ``[chains]`` seconds.

    Raises:
        ValueError: as ``round_trip_time``, or arrays of different shapes.

    >>> round_trip_times([[3, 5], [3, 6]], [[1, 1], [1, 1]], (0, 1), 3)
    array([15., 18.])
    """
    compute = np.atleast_2d(np.asarray(compute_s, dtype=np.float64))
    move = np.atleast_2d(np.asarray(move_s, dtype=np.float64))
    if compute.shape != move.shape or compute.ndim != 2:
        raise ValueError(
            "compute_s and move_s need the same shape [chains, N], "
            f"got {compute.shape} and {move.shape}"
        )
    if not len(compute):
        return np.empty(0)
    check_chain(tuple(compute.min(axis=0)), tuple(move.min(axis=0)), owner, microbatches)
    groups = np.unique(np.asarray(owner, dtype=np.int64), return_inverse=True)[1].reshape(-1)
    out_s = np.empty(len(compute))

    def solve(start: int) -> None:
        rows = slice(start, start + _CHAINS_PER_TASK)
        _solve(compute[rows], move[rows], groups, microbatches, out_s[rows])

    starts = range(0, len(compute), _CHAINS_PER_TASK)
    if len(starts) == 1:
        solve(0)
    else:
        list(_threads().map(solve, starts))
    return out_s


def compile_evaluator() -> float:
    """Compile (or load from the cache) the batched evaluator; returns the seconds it took."""
    start = time.perf_counter()
    round_trip_times(np.ones((1, 2)), np.ones((1, 2)), (0, 1), 1)
    return time.perf_counter() - start


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="round-trip")


@njit(cache=True, nogil=True)
def _solve(compute_s, move_s, owner, microbatches, out_s):  # pragma: no cover - compiled
    chains, count = compute_s.shape
    groups = 0
    for group in owner:
        groups = max(groups, group + 1)
    entries, slots = _entries(owner, groups, microbatches)
    compute = np.empty((count, LANES))
    move = np.empty((count, LANES))
    states = np.empty((entries + 1, entries, LANES))
    for first in range(0, chains, LANES):
        for lane in range(LANES):
            chain = min(first + lane, chains - 1)
            for i in range(count):
                compute[i, lane] = compute_s[chain, i]
                move[i, lane] = move_s[chain, i]
        _settle(compute, move, owner, slots, microbatches, states, out_s[first : first + LANES])


@njit(cache=True, nogil=True)
def _entries(owner, groups, microbatches):  # pragma: no cover - compiled
    """Number of state entries, and where each group's compute, egress and ingress stand."""
    count = len(owner)
    slots = np.full((3, groups), -1, dtype=np.int64)
    for group in range(groups):
        slots[0, group] = group
    entries = groups
    for i in range(count):
        source, target = owner[i], owner[(i + 1) % count]
        if source != target:
            if slots[1, source] < 0:
                slots[1, source] = entries
                entries += 1
            if slots[2, target] < 0:
                slots[2, target] = entries
                entries += 1
    return entries + microbatches, slots


@njit(cache=True, nogil=True)
def _settle(compute, move, owner, slots, microbatches, states, out_s):  # pragma: no cover
    """Round-trip times of one block of lanes; ``out_s`` may be shorter than a block."""
    entries = states.shape[1]
    settled = np.zeros(LANES, dtype=np.bool_)
    left = len(out_s)
    _fill(states[0], 0.0)
    for iteration in range(1, entries + 1):
        _copy(states[iteration - 1], states[iteration])
        _iterate(compute, move, owner, slots, microbatches, states[iteration])
        for lane in range(len(out_s)):
            if settled[lane]:
                continue
            for period in range(1, min(PERIOD_LIMIT, iteration) + 1):
                low, high = np.inf, -np.inf
                for entry in range(entries):
                    shift = states[iteration, entry, lane] - states[iteration - period, entry, lane]
                    low = min(low, shift)
                    high = max(high, shift)
                if high - low <= SHIFT_TOLERANCE * high:
                    out_s[lane] = 0.5 * (low + high) / period
                    settled[lane] = True
                    left -= 1
                    break
        if left == 0:
            return
    for lane in range(len(out_s)):
        if not settled[lane]:
            out_s[lane] = _karp(states, lane)


# Loops: numba takes seconds to compile the assignment of one array to another.
@njit(cache=True, nogil=True)
def _fill(state, value):  # pragma: no cover - compiled
    for entry in range(state.shape[0]):
        for lane in range(state.shape[1]):
            state[entry, lane] = value


@njit(cache=True, nogil=True)
def _copy(source, target):  # pragma: no cover - compiled
    for entry in range(source.shape[0]):
        for lane in range(source.shape[1]):
            target[entry, lane] = source[entry, lane]


@njit(cache=True, nogil=True)
def _karp(states, lane):  # pragma: no cover - compiled
    entries = states.shape[1]
    best = -np.inf
    for entry in range(entries):
        worst = np.inf
        for k in range(entries):
            rise = states[entries, entry, lane] - states[k, entry, lane]
            worst = min(worst, rise / (entries - k))
        best = max(best, worst)
    return best


@njit(cache=True, nogil=True)
def _iterate(compute, move, owner, slots, microbatches, state):  # pragma: no cover
    """Advance all lanes by one decode iteration; ``state`` is ``[entries, LANES]``."""
    count = len(owner)
    first_arrival = state.shape[0] - microbatches
    for i in range(count):
        source, target = owner[i], owner[(i + 1) % count]
        free = state[slots[0, source]]
        for mb in range(microbatches):
            arrival = state[first_arrival + mb]
            if source == target:
                for lane in range(LANES):
                    ready, idle = arrival[lane], free[lane]
                    done = (ready if ready > idle else idle) + compute[i, lane]
                    free[lane] = done
                    arrival[lane] = done + move[i, lane]
            else:
                egress = state[slots[1, source]]
                ingress = state[slots[2, target]]
                for lane in range(LANES):
                    ready, idle = arrival[lane], free[lane]
                    done = (ready if ready > idle else idle) + compute[i, lane]
                    free[lane] = done
                    out, into = egress[lane], ingress[lane]
                    start = done if done > out else out
                    end = (start if start > into else into) + move[i, lane]
                    arrival[lane] = end
                    egress[lane] = end
                    ingress[lane] = end
