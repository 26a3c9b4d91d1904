"""Theorem 3.2 part by part: two device types against the better one of them."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from weavejax import theory
from weavejax.meshes import device_spec
from weavejax.theory import TheoryDevice, TheoryModel

RELATIVE = 1e-12  # what rounding may take from a non-strict bound

devices = st.builds(
    TheoryDevice,
    bandwidth_bytes_per_s=st.floats(1e11, 1e13),
    flop_per_s=st.floats(1e13, 1e16),
    memory_bytes=st.just(80e9),
    usd_per_s=st.floats(1e-5, 1e-2),
)
models = st.builds(TheoryModel, weights_bytes=st.just(1e9), active_params=st.floats(1e8, 5e11))
kv_sizes = st.floats(0, 1e13)


@st.composite
def crossed(draw) -> tuple[TheoryDevice, TheoryDevice]:
    """Two types of which neither is no worse in both prices, labelled so that α1 < α2, γ2 < γ1.

    Drawn as r = α2/α1 > 1 and q = γ1/γ2 > 1, the form the proof uses.
    """
    one = draw(devices)
    r, q = draw(st.floats(1.01, 30)), draw(st.floats(1.01, 30))
    usd_per_s = draw(st.floats(1e-5, 1e-2))
    two = dataclasses.replace(
        one,
        usd_per_s=usd_per_s,
        bandwidth_bytes_per_s=usd_per_s / (r * one.usd_per_byte),
        flop_per_s=usd_per_s * q / one.usd_per_flop,
    )
    return one, two


@given(st.lists(devices, min_size=1, max_size=4), models, kv_sizes)
def test_part_1_gain_is_at_least_one(types, model, kv_bytes):
    assert theory.heterogeneous_gain(types, model, kv_bytes) >= 1.0


@given(devices, st.floats(1, 5), st.floats(1, 5), st.booleans(), models, kv_sizes)
def test_part_2_no_gain_under_dominance(best, slower, weaker, first, model, kv_bytes):
    worse = dataclasses.replace(
        best,
        bandwidth_bytes_per_s=best.bandwidth_bytes_per_s / slower,
        flop_per_s=best.flop_per_s / weaker,
    )
    pair = (best, worse) if first else (worse, best)
    assert theory.heterogeneous_gain(pair, model, kv_bytes) == 1.0
    assert theory.heterogeneous_peak(*pair, model) is None


@given(devices, devices, models)
def test_part_3_labelling_orders_the_prices_unless_one_type_dominates(first, second, model):
    one, two = theory.by_bandwidth(first, second)
    assert {id(one), id(two)} == {id(first), id(second)}
    eta = theory.hardware_ratio(first, second)
    assert eta >= 1 - RELATIVE
    assert eta == pytest.approx(
        one.bandwidth_bytes_per_s * two.flop_per_s / (two.bandwidth_bytes_per_s * one.flop_per_s)
    )
    dominated = any(
        a.usd_per_byte <= b.usd_per_byte and a.usd_per_flop <= b.usd_per_flop
        for a, b in ((one, two), (two, one))
    )
    crossed_prices = one.usd_per_byte < two.usd_per_byte and two.usd_per_flop < one.usd_per_flop
    assert crossed_prices != dominated
    assert (theory.heterogeneous_peak(first, second, model) is None) == dominated


@given(crossed(), models, st.floats(-3, 3), st.floats(-3, 3))
def test_part_3_gain_rises_to_the_crossing_and_falls_after_it(pair, model, first, second):
    peak = theory.heterogeneous_peak(*pair, model)
    assert peak is not None
    near, far = sorted((abs(first), abs(second)))
    assume(far > near + 1e-3)
    before = peak.kv_bytes * np.array([10.0**-far, 10.0**-near])
    after = peak.kv_bytes * np.array([10.0**near, 10.0**far])
    rising = theory.heterogeneous_gain(pair, model, before)
    falling = theory.heterogeneous_gain(pair, model, after)
    assert rising[0] < rising[1] <= peak.gain * (1 + RELATIVE)
    assert falling[1] < falling[0] <= peak.gain * (1 + RELATIVE)


@given(crossed(), models)
def test_part_3_peak_lies_where_the_homogeneous_costs_cross(pair, model):
    one, two = pair
    peak = theory.heterogeneous_peak(one, two, model)
    assert peak is not None
    costs = [theory.homogeneous_usd_per_token(type_, model, peak.kv_bytes) for type_ in pair]
    assert costs[0] == pytest.approx(costs[1], rel=1e-9)
    gain = theory.heterogeneous_gain(pair, model, peak.kv_bytes)
    r, q = two.usd_per_byte / one.usd_per_byte, one.usd_per_flop / two.usd_per_flop
    assert r * q == pytest.approx(theory.hardware_ratio(one, two), rel=1e-9)
    assert peak.gain == pytest.approx((r * q - 1) / (r + q - 2), rel=1e-9)
    assert gain == pytest.approx(peak.gain, rel=1e-9)
    # The better single type changes there: type 2 below, type 1 above.
    for scale, better in ((0.5, two), (2.0, one)):
        kv_bytes = scale * peak.kv_bytes
        best = theory.best_homogeneous_usd_per_token(pair, model, kv_bytes)
        assert best == theory.homogeneous_usd_per_token(better, model, kv_bytes)


@given(crossed(), models, st.floats(0.01, 0.9), st.floats(1.1, 100))
def test_part_3_restricted_to_an_interval_the_peak_is_inside_or_the_gain_monotone(
    pair, model, low, high
):
    peak = theory.heterogeneous_peak(*pair, model)
    assert peak is not None
    inside = peak.kv_bytes * np.concatenate([np.linspace(low, 1, 8), np.linspace(1, high, 8)[1:]])
    assert np.argmax(theory.heterogeneous_gain(pair, model, inside)) == 7
    below = theory.heterogeneous_gain(pair, model, peak.kv_bytes * np.linspace(low / 10, low, 8))
    above = theory.heterogeneous_gain(pair, model, peak.kv_bytes * np.linspace(high, 10 * high, 8))
    assert np.all(np.diff(below) > 0)
    assert np.all(np.diff(above) < 0)


@given(crossed(), models)
def test_part_3_gain_tends_to_one_at_both_ends(pair, model):
    peak = theory.heterogeneous_peak(*pair, model)
    assert peak is not None
    ends = np.array([0.0, 1e-12, 1e12]) * peak.kv_bytes
    np.testing.assert_allclose(theory.heterogeneous_gain(pair, model, ends), 1.0, atol=1e-7)


@given(devices, devices, models, kv_sizes)
def test_equation_8_bounds_the_gain_at_any_context_and_prices(first, second, model, kv_bytes):
    gain = theory.heterogeneous_gain((first, second), model, kv_bytes)
    assert gain <= theory.heterogeneous_gain_bound(first, second) * (1 + RELATIVE)


@given(crossed(), models, st.booleans())
def test_equation_8_is_reached_at_its_price_ratio(pair, model, swap):
    first, second = reversed(pair) if swap else pair
    ratio = theory.bound_price_ratio(first, second)
    assert ratio == pytest.approx(
        math.sqrt(
            first.bandwidth_bytes_per_s
            * first.flop_per_s
            / (second.bandwidth_bytes_per_s * second.flop_per_s)
        )
    )
    repriced = dataclasses.replace(first, usd_per_s=ratio * second.require_usd_per_s())
    peak = theory.heterogeneous_peak(repriced, second, model)
    assert peak is not None
    bound = theory.heterogeneous_gain_bound(repriced, second)
    assert peak.gain == pytest.approx(bound, rel=1e-9)
    gain = theory.heterogeneous_gain((repriced, second), model, peak.kv_bytes)
    assert gain == pytest.approx(bound, rel=1e-9)


@given(crossed(), models, st.floats(1.01, 1.5), st.booleans())
def test_equation_8_is_not_reached_at_another_price_ratio(pair, model, away, up):
    one, two = pair
    usd_per_s = theory.bound_price_ratio(one, two) * two.require_usd_per_s()
    repriced = dataclasses.replace(one, usd_per_s=usd_per_s * (away if up else 1 / away))
    peak = theory.heterogeneous_peak(repriced, two, model)
    highest = 1.0 if peak is None else peak.gain
    assert highest < theory.heterogeneous_gain_bound(repriced, two)


@given(st.lists(devices, min_size=1, max_size=4), models, kv_sizes)
def test_equations_6_and_7_are_minima_over_all_assignments(types, model, kv_bytes):
    cost = [
        [theory.heterogeneous_usd_per_token(a, g, model, kv_bytes) for g in types] for a in types
    ]
    assert theory.best_heterogeneous_usd_per_token(types, model, kv_bytes) == np.min(cost)
    assert theory.best_homogeneous_usd_per_token(types, model, kv_bytes) == np.min(np.diag(cost))


@pytest.mark.parametrize(("other", "eta", "bound"), [("l40s", 1.42, 1.10), ("a100", 1.93, 1.19)])
def test_ratio_and_bound_of_the_paper_with_h100(other, eta, bound):
    h100, second = (TheoryDevice.from_spec(device_spec(name)) for name in ("h100", other))
    assert round(theory.hardware_ratio(h100, second), 2) == eta
    assert round(theory.heterogeneous_gain_bound(h100, second), 2) == bound
    assert theory.hardware_ratio(second, h100) == theory.hardware_ratio(h100, second)
