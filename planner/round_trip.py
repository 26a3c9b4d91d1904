"""Steady-state round-trip time of a ring of stage occurrences, in plain Python.

This is the readable form of design section 5. :mod:`weavejax.planner.round_trip_batch` compiles
the same recurrence for many chains at once, and :mod:`weavejax.planner.simulator` plays the
action lists of a plan event by event; the tests hold all three to the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weavejax.planner.steady_state import settled_round_trip


def round_trip_time(
    compute_s: Sequence[float],
    move_s: Sequence[float],
    owner: Sequence[int],
    microbatches: int,
) -> float:
    """Seconds per decode iteration once the schedule has settled.

    Args:
        compute_s: ``[N]`` seconds of each stage occurrence for one microbatch, in ring order.
        move_s: ``[N]`` seconds of the move after each occurrence; the last one feeds the first
            occurrence of the next iteration.
        owner: ``[N]`` device group of each occurrence.
        microbatches: mu >= 1.

    Returns:
        T_rtt: the limit of (completion time of iteration r) / r, the maximum cycle ratio of the
        event graph.

    Raises:
        ValueError: lengths that differ, no occurrence, a negative time, or no microbatch.

    >>> [round_trip_time((3, 5), (1, 1), (0, 1), mu) for mu in (1, 2, 3)]
    [10.0, 10.0, 15.0]
    >>> round_trip_time((1, 2, 2), (0, 3, 6), (0, 1, 0), 3)
    14.5
    """
    check_chain(compute_s, move_s, owner, microbatches)
    return settled_round_trip(_states(compute_s, move_s, owner, microbatches))


def check_chain(
    compute_s: Sequence[float], move_s: Sequence[float], owner: Sequence[int], microbatches: int
) -> None:
    """Raise ValueError unless the arguments describe a chain that can run."""
    lengths = (len(compute_s), len(move_s), len(owner))
    if lengths[0] == 0 or len(set(lengths)) > 1:
        raise ValueError(
            "compute_s, move_s and owner need one entry per stage occurrence (at least one), "
            f"got {lengths[0]}, {lengths[1]} and {lengths[2]}"
        )
    if microbatches < 1:
        raise ValueError(f"microbatches must be at least 1, got {microbatches}")
    if min(owner) < 0:
        raise ValueError(f"owners are groups 0, 1, ..., got {min(owner)}")
    slowest = min(*compute_s, *move_s)
    if not slowest >= 0:
        raise ValueError(f"times must be at least 0 seconds, got {slowest}")


def _states(
    compute_s: Sequence[float], move_s: Sequence[float], owner: Sequence[int], microbatches: int
) -> Iterator[list[float]]:
    """The state before every iteration, without end.

    An entry per group that computes, per egress and ingress channel that carries a move, and per
    microbatch arrival at the first occurrence.
    """
    count = len(owner)
    free = dict.fromkeys(owner, 0.0)
    crossings = [(owner[i], owner[(i + 1) % count]) for i in range(count)]
    egress = {source: 0.0 for source, target in crossings if source != target}
    ingress = {target: 0.0 for source, target in crossings if source != target}
    arrival = [0.0] * microbatches
    while True:
        yield [*free.values(), *egress.values(), *ingress.values(), *arrival]
        for i, (source, target) in enumerate(crossings):
            for mb in range(microbatches):
                done = max(free[source], arrival[mb]) + compute_s[i]
                free[source] = done
                if source == target:
                    arrival[mb] = done + move_s[i]
                else:
                    start = max(done, egress[source], ingress[target])
                    arrival[mb] = egress[source] = ingress[target] = start + move_s[i]
