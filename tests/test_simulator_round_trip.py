"""The forms of the round-trip time agree with each other and with a maximum cycle ratio."""

import numpy as np
import pytest

from weavejax.planner.round_trip import round_trip_time
from weavejax.planner.round_trip_batch import compile_evaluator, round_trip_times
from weavejax.planner.steady_state import (
    karp_round_trip,
    periodic_round_trip,
    settled_round_trip,
)

PERIODIC = ((1, 2, 2), (0, 3, 6), (0, 1, 0), 3)


def random_chain(rng, *, most_stages=130):
    """(compute_s, move_s, owner, microbatches) with ties, zero moves and odd owner orders."""
    groups = int(rng.integers(1, 4))
    count = int(rng.integers(1, 7)) if rng.random() < 0.6 else int(rng.integers(1, most_stages + 1))
    style = rng.integers(3)
    if style == 0:  # few small integers: many ties, and the periodic schedules
        compute, move = rng.integers(0, 8, count), rng.integers(0, 8, count)
    elif style == 1:
        compute, move = rng.uniform(0, 1e-3, count), rng.uniform(0, 5e-4, count)
    else:
        compute, move = rng.lognormal(-8, 2, count), rng.lognormal(-9, 2, count)
    move = np.where(rng.random(count) < rng.choice([0.0, 0.3, 1.0]), 0, move)
    in_turn = rng.random() < 0.5
    owner = np.arange(count) % groups if in_turn else rng.integers(0, groups, count)
    if rng.random() < 0.1:  # where periods above 1 live: few stages and busy channels
        owner = ((0, 1, 0, 1), (0, 1, 2, 0, 1))[rng.integers(2)]
        compute, move = rng.integers(0, 9, len(owner)), rng.integers(0, 9, len(owner))
        return tuple(map(float, compute)), tuple(map(float, move)), owner, 4
    return (
        tuple(map(float, compute)),
        tuple(map(float, move)),
        tuple(map(int, owner)),
        int(rng.integers(1, 5)),
    )


def cycle_ratio(compute_s, move_s, owner, microbatches):
    """Maximum cycle ratio of the event graph: raise the rate until no cycle is heavier.

    An edge says "not before": its weight is the time of the event it leaves, its token count the
    iterations it spans. Returns the largest sum of weights over sum of tokens of any cycle.
    """
    count, queues, edges = len(owner), {}, []
    run = {(i, mb): 2 * (i * microbatches + mb) for i in range(count) for mb in range(microbatches)}
    for (i, mb), event in run.items():
        target = owner[(i + 1) % count]
        edges.append((event, event + 1, compute_s[i], 0))
        edges.append((event + 1, run[(i + 1) % count, mb], move_s[i], int(i == count - 1)))
        queues.setdefault(("compute", owner[i]), []).append((event, compute_s[i]))
        if target != owner[i]:
            queues.setdefault(("egress", owner[i]), []).append((event + 1, move_s[i]))
            queues.setdefault(("ingress", target), []).append((event + 1, move_s[i]))
    for queue in queues.values():
        for (event, time_s), (after, _) in zip(queue, queue[1:] + queue[:1], strict=True):
            edges.append((event, after, time_s, int((event, time_s) == queue[-1])))
    source, target, time_s, tokens = (np.array(column) for column in zip(*edges, strict=True))
    rate = 0.0
    while (cycle := _positive_cycle(source, target, time_s - rate * tokens)) is not None:
        rate = max(rate * (1 + 1e-15), time_s[cycle].sum() / tokens[cycle].sum())
    return rate


def _positive_cycle(source, target, weight):
    """Edges of a cycle whose weight is positive beyond rounding (Bellman-Ford), or None."""
    nodes = int(target.max()) + 1
    best, through = np.zeros(nodes), np.full(nodes, -1)
    slack = 1e-13 * np.abs(weight).max()
    for _ in range(nodes + 1):
        reach = best[source] + weight
        better = np.flatnonzero(reach > best[target] + slack)
        if not len(better):
            return None
        order = better[np.argsort(reach[better])]  # of several, the last write is the longest
        best[target[order]] = reach[order]
        through[target[order]] = order
    node = target[better[0]]
    for _ in range(nodes):
        node = source[through[node]]
    cycle, start = [], node
    while not cycle or node != start:
        cycle.append(through[node])
        node = source[through[node]]
    return cycle


@pytest.mark.parametrize(("microbatches", "expected_s"), [(1, 10), (2, 10), (3, 15)])
def test_two_stages_on_two_groups(microbatches, expected_s):
    assert round_trip_time((3, 5), (1, 1), (0, 1), microbatches) == expected_s
    assert round_trip_times([(3, 5)], [(1, 1)], (0, 1), microbatches)[0] == expected_s


def test_periodic_schedules_average_over_their_period():
    assert round_trip_time(*PERIODIC) == 14.5
    assert round_trip_time((7, 4, 4, 7), (0, 7, 1, 4), (0, 1, 0, 1), 4) == 48.5
    assert round_trip_times([(7, 4, 4, 7)], [(0, 7, 1, 4)], (0, 1, 0, 1), 4)[0] == 48.5


def test_one_group_is_its_own_work():
    assert round_trip_time((1, 2, 3), (0, 0, 0), (0, 0, 0), 4) == pytest.approx(24)


def test_forms_agree_on_6000_chains():
    rng = np.random.default_rng(0)
    periodic = 0
    for _ in range(6000):
        compute, move, owner, microbatches = random_chain(rng)
        plain = round_trip_time(compute, move, owner, microbatches)
        batch = round_trip_times([compute, compute], [move, move], owner, microbatches)
        np.testing.assert_allclose(batch, plain, rtol=1e-9, atol=0)
        periodic += _settles_periodically(compute, move, owner, microbatches, plain)
    assert periodic >= 10


def _settles_periodically(compute, move, owner, microbatches, rate):
    """Whether successive iterations still differ in length long after the start."""
    ends, arrival, free, egress, ingress = [], [0.0] * microbatches, {}, {}, {}
    count = len(owner)
    for _ in range(40 if count < 7 else 0):
        for i in range(count):
            source, target = owner[i], owner[(i + 1) % count]
            for mb in range(microbatches):
                end = max(free.get(source, 0.0), arrival[mb]) + compute[i]
                free[source] = end
                if source != target:
                    end = max(end, egress.get(source, 0.0), ingress.get(target, 0.0))
                    egress[source] = ingress[target] = end + move[i]
                arrival[mb] = end + move[i]
        ends.append(arrival[-1])
    steps = np.diff(ends)[-4:]
    return len(steps) > 0 and bool(np.ptp(steps) > 1e-6 * rate)


def test_agrees_with_the_maximum_cycle_ratio_on_300_chains():
    rng = np.random.default_rng(7)
    for _ in range(300):
        chain = random_chain(rng, most_stages=14)
        assert round_trip_time(*chain) == pytest.approx(cycle_ratio(*chain), rel=1e-9, abs=1e-15)


def test_batches_of_any_size_keep_their_order():
    rng = np.random.default_rng(3)
    owner = (0, 1, 0, 1, 2)
    for chains in (0, 1, 7, 8, 9, 1100):
        compute, move = rng.uniform(1, 2, (chains, 5)), rng.uniform(0, 1, (chains, 5))
        times_s = round_trip_times(compute.reshape(-1, 5), move.reshape(-1, 5), owner, 3)
        assert times_s.shape == (chains,)
        for row in range(0, chains, 97):
            expected = round_trip_time(tuple(compute[row]), tuple(move[row]), owner, 3)
            assert times_s[row] == pytest.approx(expected, rel=1e-9)


def test_longer_stages_and_moves_never_shorten_the_round_trip():
    rng = np.random.default_rng(11)
    for _ in range(200):
        compute, move, owner, microbatches = random_chain(rng, most_stages=20)
        longer = tuple(t * rng.uniform(1, 2) for t in compute)
        slower = tuple(u * rng.uniform(1, 2) for u in move)
        before = round_trip_time(compute, move, owner, microbatches)
        assert round_trip_time(longer, slower, owner, microbatches) >= before * (1 - 1e-9)


def test_karp_closes_where_no_period_has_shown():
    # Two groups that barely differ: the lead of one cycle shows only after a long transient.
    compute, move = (1.0, 1.0 + 1e-7), (0.0, 0.0)
    assert round_trip_time(compute, move, (0, 1), 4) == pytest.approx(4 + 4e-7, rel=1e-12)
    states = np.array([[0.0, 0.0], [14.0, 15.0], [29.0, 29.0]])
    assert karp_round_trip(states) == periodic_round_trip(states) == 14.5
    assert periodic_round_trip(states[:2]) is None


def test_compile_time_is_reported():
    assert compile_evaluator() >= 0


def test_errors_say_what_was_got():
    with pytest.raises(ValueError, match=r"one entry per stage occurrence .* got 2, 1 and 2"):
        round_trip_time((1, 2), (1,), (0, 1), 1)
    with pytest.raises(ValueError, match="microbatches must be at least 1, got 0"):
        round_trip_time((1,), (1,), (0,), 0)
    with pytest.raises(ValueError, match=r"at least 0 seconds, got -2"):
        round_trip_time((1,), (-2,), (0,), 1)
    with pytest.raises(ValueError, match=r"groups 0, 1, \.\.\., got -1"):
        round_trip_time((1,), (2,), (-1,), 1)
    with pytest.raises(ValueError, match=r"same shape \[chains, N\], got \(1, 2\) and \(1, 1\)"):
        round_trip_times([[1, 2]], [[1]], (0, 1), 1)
    with pytest.raises(ValueError, match="one state more than entries: 3, got 2"):
        karp_round_trip(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="states ended after 1 iterations"):
        settled_round_trip([np.zeros(2)])
