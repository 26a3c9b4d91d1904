"""Moves that take compute time from both ends, as those of CPU workers do.

The planner's moves cost the groups nothing but their latency: copy engines carry them. A worker on
one core sends and receives with that core.
"""

from __future__ import annotations

from collections.abc import Sequence


def occupied(
    compute_s: Sequence[float], move_s: Sequence[float], owners: Sequence[int], busy_s: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Stage and move times in which each end of a move computes for ``busy_s`` of it.

    What a whole pass takes where nothing overlaps stays the same.

    Args:
        compute_s: ``[N]`` of each stage occurrence.
        move_s: ``[N]`` of the boundary after each occurrence.
        owners: ``[N]`` groups.
        busy_s: seconds of each end; a move that takes less than both of them keeps its time.

    Examples:
        >>> occupied([1.0, 2.0], [0.5, 0.5], [0, 1], 0.125)
        ((1.25, 2.25), (0.25, 0.25))
    """
    compute, moves, count = list(compute_s), list(move_s), len(owners)
    for place in range(count):
        after = (place + 1) % count
        if owners[place] != owners[after]:
            end_s = min(busy_s, moves[place] / 2)
            compute[place] += end_s
            compute[after] += end_s
            moves[place] -= 2 * end_s
    return tuple(compute), tuple(moves)
