"""Latency and busy time of a move, from plans that move often."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weavejax.measure.link_fit import SATURATED, SERIAL, fit_link, fit_move
from weavejax.measure.occupied import occupied
from weavejax.planner.round_trip import round_trip_time

OWNERS = [0, 1] * 6
stages = st.lists(st.floats(1e-4, 1e-2), min_size=len(OWNERS), max_size=len(OWNERS))


def round_trip(compute_s, cost, microbatches):
    latency_s, busy_s = cost
    compute, moves = occupied(compute_s, [latency_s] * len(OWNERS), OWNERS, busy_s)
    return round_trip_time(compute, moves, OWNERS, microbatches)


@given(stages, st.floats(1e-5, 1e-2), st.floats(0, 0.5))
@settings(max_examples=40, deadline=None)
def test_a_machine_that_follows_the_model_gives_its_times_back(compute_s, latency_s, share):
    busy_s = share * latency_s
    measured_s = {m: round_trip(compute_s, (latency_s, busy_s), m) for m in (SERIAL, SATURATED)}
    found = fit_move(lambda m, *cost: round_trip(compute_s, cost, m), measured_s)
    assert found[0] == pytest.approx(latency_s, rel=1e-6)
    # whatever busy time is found, the saturated plan takes what it took
    again = round_trip(compute_s, found, SATURATED)
    assert again == pytest.approx(measured_s[SATURATED], rel=1e-6)


def test_busy_time_is_found_where_both_groups_always_compute():
    compute_s = [1e-3] * len(OWNERS)
    measured_s = {m: round_trip(compute_s, (4e-4, 1e-4), m) for m in (SERIAL, SATURATED)}
    found = fit_move(lambda m, *cost: round_trip(compute_s, cost, m), measured_s)
    assert found == pytest.approx((4e-4, 1e-4), rel=1e-6)


@given(stages, st.floats(0, 1e-3), st.floats(0, 1e-3))
def test_busy_ends_keep_what_a_pass_takes_alone(compute_s, move_s, busy_s):
    compute, moves = occupied(compute_s, [move_s] * len(OWNERS), OWNERS, busy_s)
    assert min(moves) >= 0 and np.all(np.array(compute) >= compute_s)
    before = sum(compute_s) + len(OWNERS) * move_s
    assert sum(compute) + sum(moves) == pytest.approx(before)


def test_a_boundary_inside_a_group_costs_its_group_nothing():
    compute, moves = occupied([1.0, 1.0, 1.0], [0.0, 0.5, 0.5], [0, 0, 1], 0.1)
    assert compute == pytest.approx((1.1, 1.1, 1.2)) and moves == pytest.approx((0.0, 0.3, 0.3))


@pytest.mark.parametrize("larger_s", [1e-4, 3e-4, 9e-4])
def test_a_link_is_never_faster_than_its_small_moves(larger_s):
    link = fit_link([(1e4, (3e-4, 1e-4)), (4e4, (larger_s, 1e-4))])
    assert link.bandwidth_bytes_per_s > 0 and 0 < link.latency_s <= 3e-4
    if larger_s >= 3e-4 and link.latency_s > 1e-6:
        for size, time_s in ((1e4, 3e-4), (4e4, larger_s)):
            found_s = link.latency_s + size / link.bandwidth_bytes_per_s
            assert found_s == pytest.approx(time_s, rel=1e-3)
