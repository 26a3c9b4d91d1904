"""Sampling on the device against a reference that sorts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weavejax.runtime.batches import greedy_rows
from weavejax.runtime.sampling import NOT_A_NUMBER, RowSampling, candidates, greedy, sample

ROWS, VOCAB = 24, 50
draw_tokens = jax.jit(sample)
device_candidates = jax.jit(candidates)


def parameters(rows, temperature=1.0, top_k=0, top_p=1.0, seed=0):
    return RowSampling(
        temperature=np.broadcast_to(np.float32(temperature), rows),
        top_k=np.broadcast_to(np.int32(top_k), rows),
        top_p=np.broadcast_to(np.float32(top_p), rows),
        seed=np.broadcast_to(np.uint32(seed), rows),
    )


def reference(tempered, top_k, top_p):
    """(kept tokens of one row, whether rounding may decide): sort, then cumulative sums.

    Tokens of equal tempered logit stand or fall together, so that the answer does not hang on the
    order in which a sort leaves them.
    """
    order = np.sort(tempered)[::-1]
    kept = tempered >= (order[top_k - 1] if 0 < top_k < len(order) else -np.inf)
    kept &= np.isfinite(tempered)
    if top_p >= 1:
        return kept, False
    weights = np.where(kept, np.exp(tempered.astype(np.float64) - order[0]), 0)
    weights /= weights.sum()
    near = False
    for value in np.unique(tempered[kept])[::-1]:
        mass = weights[tempered >= value].sum()
        near |= abs(mass - top_p) < 1e-5
        if mass >= top_p:
            return kept & (tempered >= value), near
    return kept, near


def random_logits(rng, kind):
    if kind == "ties":
        return rng.integers(-3, 4, (ROWS, VOCAB)).astype(np.float32)
    logits = rng.normal(0, 3, (ROWS, VOCAB)).astype(np.float32)
    if kind == "huge":
        return logits * np.float32(1e30)
    if kind == "negative":
        return logits - np.float32(1e4)
    if kind == "impossible":
        return np.where(rng.random((ROWS, VOCAB)) < 0.7, -np.inf, logits).astype(np.float32)
    return logits


@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(("normal", "ties", "huge", "negative", "impossible")),
    limits=st.sampled_from(("top_k", "top_p", "both", "neither")),
)
@settings(max_examples=60)
def test_what_may_be_drawn_equals_the_sorting_reference(seed, kind, limits):
    rng = np.random.default_rng(seed)
    logits = random_logits(rng, kind)
    logits[:, 0] = np.maximum(logits[:, 0], -1e30)  # something is always possible
    sampling = parameters(
        ROWS,
        temperature=rng.choice([0.1, 0.7, 1.0, 2.5], ROWS),
        top_k=rng.integers(0, VOCAB + 5, ROWS) if limits in ("top_k", "both") else 0,
        top_p=rng.uniform(0.01, 1, ROWS) if limits in ("top_p", "both") else 1.0,
    )
    # A division on the device may differ in the last bit, so the cut-offs are compared on its own.
    tempered = np.asarray(device_candidates(logits, parameters(ROWS, sampling.temperature)))
    np.testing.assert_allclose(tempered, logits / sampling.temperature[:, None], rtol=3e-7)
    masked = np.asarray(device_candidates(logits, sampling))
    got = np.isfinite(masked)
    assert np.array_equal(masked[got], tempered[got])
    compared = 0
    for row in range(ROWS):
        expected, near = reference(tempered[row], sampling.top_k[row], sampling.top_p[row])
        if not near:
            compared += 1
            assert np.array_equal(got[row], expected)
    assert compared >= ROWS // 2


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=20)
def test_draws_come_from_what_may_be_drawn(seed):
    rng = np.random.default_rng(seed)
    logits = random_logits(rng, "impossible")
    logits[:, 0] = 0
    sampling = parameters(ROWS, 0.8, rng.integers(0, 9, ROWS), rng.uniform(0.1, 1, ROWS), seed)
    ids, _ = draw_tokens(logits, sampling, np.arange(ROWS, dtype=np.int32))
    possible = np.isfinite(np.asarray(device_candidates(logits, sampling)))
    assert ids.dtype == jnp.int32
    assert possible[np.arange(ROWS), ids].all()


def test_ties_at_a_cut_off_stay_together():
    logits = np.log(np.array([[4, 2, 2, 1, 1]], np.float32))
    for top_k, top_p, kept in (
        (1, 1.0, 1),
        (2, 1.0, 3),
        (3, 1.0, 3),
        (4, 1.0, 5),
        (0, 0.3, 1),
        (0, 0.5, 3),
        (0, 0.95, 5),
        (2, 0.49, 1),  # of the eight parts that top-k leaves, four are 0.5
        (2, 0.51, 3),
    ):
        masked = device_candidates(logits, parameters(1, 1.0, top_k, top_p))
        assert np.isfinite(masked).tolist() == [[True] * kept + [False] * (5 - kept)]


# -- greedy ----------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(("normal", "ties", "huge")))
@settings(max_examples=20)
def test_temperature_zero_is_the_first_maximum_whatever_the_rest_says(seed, kind):
    rng = np.random.default_rng(seed)
    logits = random_logits(rng, kind)
    temperature = np.where(np.arange(ROWS) % 2, 0.0, 1.0)
    sampling = parameters(ROWS, temperature, 3, 0.5, rng.integers(0, 2**32, ROWS))
    positions = np.arange(ROWS, dtype=np.int32)
    ids, _ = draw_tokens(logits, sampling, positions)
    greedy, _ = draw_tokens(logits, greedy_rows(ROWS), positions)
    assert np.array_equal(greedy, logits.argmax(1))
    assert np.array_equal(np.asarray(ids)[1::2], logits.argmax(1)[1::2])


@pytest.mark.parametrize(
    "limits",
    [
        {"top_k": 1},
        {"top_p": 1e-6},
        {"top_p": 1e-40},  # below the normal range of float32
        {"top_p": 1e-300},  # zero in float32
        {"temperature": 1e-6},
        {"temperature": 1e-30},
    ],
)
def test_the_tightest_limits_are_greedy(limits):
    logits = np.random.default_rng(0).normal(0, 3, (ROWS, VOCAB)).astype(np.float32)
    best = np.sort(logits, axis=1)
    assert (best[:, -1] - best[:, -2]).min() > 1e-3
    sampling = parameters(ROWS, **limits)
    ids, _ = draw_tokens(logits, sampling, np.arange(ROWS, dtype=np.int32))
    assert np.array_equal(ids, logits.argmax(1))


# -- randomness ------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=15)
def test_a_draw_depends_on_its_own_row_alone(seed):
    rng = np.random.default_rng(seed)
    logits = random_logits(rng, "normal")
    temperature = rng.choice([0.0, 0.5, 1.0, 2.0], ROWS)
    seeds = rng.integers(0, 2**32, ROWS)
    sampling = parameters(ROWS, temperature, rng.choice([0, 7], ROWS), 1.0, seeds)
    positions = rng.integers(0, 9999, ROWS).astype(np.int32)
    ids, logprobs = map(np.asarray, draw_tokens(logits, sampling, positions))

    order = rng.permutation(ROWS)
    shuffled = RowSampling(*(field[order] for field in sampling))
    again, _ = draw_tokens(logits[order], shuffled, positions[order])
    assert np.array_equal(again, ids[order])

    # The other rows turn into something else; row 5 stays.
    others = RowSampling(*(np.array(field) for field in parameters(ROWS, 0.0)))
    changed = rng.normal(0, 9, (ROWS, VOCAB)).astype(np.float32)
    changed[5] = logits[5]
    for field, own in zip(others, sampling, strict=True):
        field[5] = own[5]
    alone, logprob = draw_tokens(changed, others, np.where(np.arange(ROWS) == 5, positions, 1))
    assert alone[5] == ids[5]
    assert float(logprob[5]) == pytest.approx(float(logprobs[5]), rel=1e-6)


def chi_square(ids, probabilities):
    counts = np.bincount(ids, minlength=len(probabilities))
    expected = probabilities * len(ids)
    return float(((counts - expected) ** 2 / expected).sum())


DRAWS = 4000


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("vary", ["position", "seed"])
def test_frequencies_follow_the_softmax(temperature, vary):
    logits = np.array([0.0, 1.0, -1.0, 2.0, 0.5, -0.5, 1.5, 0.2], np.float32)
    count = np.arange(DRAWS, dtype=np.int32)
    same = np.full(DRAWS, 17, np.int32)
    sampling = parameters(DRAWS, temperature, seed=count if vary == "seed" else 5)
    positions = same if vary == "seed" else count
    ids, _ = draw_tokens(np.tile(logits, (DRAWS, 1)), sampling, positions)
    probabilities = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
    # 7 degrees of freedom: a fair sampler exceeds 26 once in 2,000 choices of the seed.
    assert chi_square(np.asarray(ids), probabilities) < 26
    # Neighbours are independent: 63 degrees of freedom, 110 once in 5,000.
    pairs = np.asarray(ids)[:-1:2] * 8 + np.asarray(ids)[1::2]
    assert chi_square(pairs, np.outer(probabilities, probabilities).ravel()) < 110


def test_frequencies_inside_a_cut_are_renormalised():
    logits = np.log(np.array([8, 4, 2, 1, 1], np.float32))
    sampling = parameters(DRAWS, 1.0, top_k=3, seed=1)
    ids, _ = draw_tokens(np.tile(logits, (DRAWS, 1)), sampling, np.arange(DRAWS, dtype=np.int32))
    assert set(np.asarray(ids)) == {0, 1, 2}
    assert chi_square(np.asarray(ids), np.array([8, 4, 2]) / 14) < 18  # 2 degrees of freedom


# -- log-probabilities -----------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(("normal", "ties", "negative", "impossible")),
)
@settings(max_examples=20)
def test_log_probabilities_are_the_untempered_models(seed, kind):
    rng = np.random.default_rng(seed)
    logits = random_logits(rng, kind)
    logits[:, 0] = np.maximum(logits[:, 0], -1e30)
    temperature = rng.choice([0.0, 0.5, 2.0], ROWS)
    sampling = parameters(ROWS, temperature, 5, 0.9, rng.integers(0, 2**32, ROWS))
    ids, logprobs = draw_tokens(logits, sampling, np.arange(ROWS, dtype=np.int32))
    wide = logits.astype(np.float64)
    top = wide.max(1, keepdims=True)
    expected = wide - top - np.log(np.exp(wide - top).sum(1, keepdims=True))
    chosen = expected[np.arange(ROWS), ids]
    # float32 near 1e4 has steps of about 1e-3
    np.testing.assert_allclose(logprobs, chosen, rtol=1e-5, atol=np.abs(top).max() * 1e-6 + 1e-5)


def test_logits_near_the_end_of_float32_give_a_certain_token():
    logits = np.full((1, VOCAB), -1e38, np.float32)
    logits[0, 7] = 1e38
    for temperature in (0.0, 1.0):
        ids, logprobs = draw_tokens(logits, parameters(1, temperature), np.zeros(1, np.int32))
        assert ids.tolist() == [7] and logprobs.tolist() == [0.0]


def test_rows_of_no_numbers_get_no_token():
    logits = np.zeros((3, 7), np.float32)
    logits[1, 4] = np.nan
    logits[2, 3] = np.inf
    logits[0, 5] = 2.0
    for temperature in (0.0, 1.0):
        ids, _ = sample(jnp.asarray(logits), parameters(3, temperature), jnp.arange(3))
        assert ids[0] >= 0 and list(ids[1:]) == [NOT_A_NUMBER] * 2
    ids, _ = greedy(jnp.asarray(logits))
    assert list(ids) == [5, NOT_A_NUMBER, NOT_A_NUMBER]
