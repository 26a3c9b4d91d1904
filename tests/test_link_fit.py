"""Latency and busy time of a move, from a plan that moves often."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weavejax.measure.link_fit import SATURATED, SERIAL, fit_bandwidth, fit_link
from weavejax.measure.occupied import occupied
from weavejax.planner.round_trip import round_trip_time

OWNERS = [0, 1] * 6
COUNTS = (SERIAL, 2, SATURATED)
stages = st.lists(st.floats(1e-4, 1e-2), min_size=len(OWNERS), max_size=len(OWNERS))


def round_trip(compute_s, latency_s, busy_s, microbatches):
    compute, moves = occupied(compute_s, [latency_s] * len(OWNERS), OWNERS, busy_s)
    return round_trip_time(compute, moves, OWNERS, microbatches)


def fit(compute_s, measured_s):
    return fit_link(
        lambda which, link: round_trip(compute_s, link.latency_s, link.busy_s, which[1]),
        {("plan", count): seconds for count, seconds in measured_s.items()},
        1e9,
    )


@given(stages, st.floats(1e-5, 1e-2), st.floats(0, 0.5))
@settings(max_examples=40, deadline=None)
def test_a_machine_that_follows_the_model_gives_its_times_back(compute_s, latency_s, share):
    busy_s = share * latency_s
    measured_s = {m: round_trip(compute_s, latency_s, busy_s, m) for m in COUNTS}
    found = fit(compute_s, measured_s)
    assert found.latency_s == pytest.approx(latency_s, rel=1e-6)
    # whatever busy time is found, every plan takes what it took, up to the steps that are tried
    step_s = latency_s / 400 * 2 * len(OWNERS)
    for count, seconds in measured_s.items():
        again_s = round_trip(compute_s, found.latency_s, found.busy_s, count)
        assert again_s == pytest.approx(seconds, rel=1e-6, abs=count * step_s)


def test_busy_time_is_found_where_both_groups_always_compute():
    compute_s = [1e-3] * len(OWNERS)
    found = fit(compute_s, {m: round_trip(compute_s, 4e-4, 1e-4, m) for m in COUNTS})
    assert (found.latency_s, found.busy_s) == pytest.approx((4e-4, 1e-4), rel=1e-2)
    assert found.bandwidth_bytes_per_s == 1e9


def test_plans_that_disagree_share_the_miss():
    compute_s = [1e-3] * len(OWNERS)
    serial_s = round_trip(compute_s, 4e-4, 0.0, SERIAL)
    small, large = (round_trip(compute_s, 4e-4, busy, SATURATED) for busy in (5e-5, 15e-5))
    found = fit(compute_s, {SERIAL: serial_s, SATURATED: small, SATURATED + 1: large * 1.25})
    assert 6e-5 < found.busy_s < 14e-5


def test_the_latency_is_the_mean_over_plans():
    compute_s = [1e-3] * len(OWNERS)
    found = fit_link(
        lambda which, link: round_trip(compute_s, link.latency_s, 0.0, which[1]),
        {
            ("short", SERIAL): round_trip(compute_s, 2e-4, 0.0, SERIAL),
            ("long", SERIAL): round_trip(compute_s, 4e-4, 0.0, SERIAL),
        },
        1e9,
    )
    assert found.latency_s == pytest.approx(3e-4)


@given(stages, st.floats(0, 1e-3), st.floats(0, 1e-3))
def test_busy_ends_keep_what_a_pass_takes_alone(compute_s, move_s, busy_s):
    compute, moves = occupied(compute_s, [move_s] * len(OWNERS), OWNERS, busy_s)
    assert min(moves) >= 0 and np.all(np.array(compute) >= compute_s)
    before = sum(compute_s) + len(OWNERS) * move_s
    assert sum(compute) + sum(moves) == pytest.approx(before)


def test_a_boundary_inside_a_group_costs_its_group_nothing():
    compute, moves = occupied([1.0, 1.0, 1.0], [0.0, 0.5, 0.5], [0, 0, 1], 0.1)
    assert compute == pytest.approx((1.1, 1.1, 1.2)) and moves == pytest.approx((0.0, 0.3, 0.3))


@given(st.floats(1e6, 1e11), st.floats(1e-6, 1e-3))
def test_bandwidth_is_the_slope_of_the_moves(bandwidth, start_s):
    moves = {size: start_s + size / bandwidth for size in (1e4, 2e4, 8e4)}
    assert fit_bandwidth(moves) == pytest.approx(bandwidth, rel=1e-3)


def test_moves_that_grow_shorter_have_no_limit():
    assert fit_bandwidth({1e4: 3e-5, 4e4: 2e-5}) >= 1e11
