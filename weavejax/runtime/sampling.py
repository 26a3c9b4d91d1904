"""Sampling on the device: greedy, temperature, top-k, top-p, one seed per request.

Nothing is sorted: the cut-offs are found by bisection over the ordered bit patterns of the
logits, 64 passes whatever the vocabulary. A row's draw depends on its seed and the position of
the new token alone, so that batch, slot and plan do not change what a request gets.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p

Array = jax.Array


NOT_A_NUMBER = -1
"""The id of a row whose logits are no numbers: a damaged model, or one that left its dtype."""


class RowSampling(NamedTuple):
    """Sampling parameters of every row, ``[b]`` each: arrays of device or host, or shapes."""

    temperature: Any
    """float32; 0 is greedy."""
    top_k: Any
    """int32; 0 keeps all."""
    top_p: Any
    """float32 in (0, 1]; 1 keeps all."""
    seed: Any
    """uint32."""


def sample(logits: Array, sampling: RowSampling, positions: Array) -> tuple[Array, Array]:
    """Draw one token per row.

    Args:
        logits: ``[b, vocab]`` float32.
        sampling: parameters per row.
        positions: ``[b]`` int32, the position the new token will have.

    Returns:
        ids ``[b]`` int32, and their log-probabilities ``[b]`` float32 under the untempered model.
        Where these are no numbers the id is :data:`NOT_A_NUMBER`.
    """
    largest = jnp.max(logits, axis=-1, keepdims=True)
    drawn = _draw(logits, sampling, positions)
    ids = jnp.where(sampling.temperature > 0, drawn, _first(logits == largest))
    chosen = jnp.take_along_axis(logits - largest, ids[:, None], axis=-1)[:, 0]
    return _checked(ids, chosen - jnp.log(jnp.sum(jnp.exp(logits - largest), axis=-1)))


def greedy(logits: Array) -> tuple[Array, Array]:
    """What :func:`sample` gives where every temperature is 0, for a fraction of its cost."""
    largest = jnp.max(logits, axis=-1, keepdims=True)
    ids = _first(logits == largest)
    return _checked(ids, -jnp.log(jnp.sum(jnp.exp(logits - largest), axis=-1)))


def _checked(ids: Array, log_probabilities: Array) -> tuple[Array, Array]:
    return jnp.where(jnp.isnan(log_probabilities), NOT_A_NUMBER, ids), log_probabilities


def _first(holds: Array) -> Array:
    """Index of the first true element of each row, int32.

    ``argmax`` as a maximum and this is six times as fast as XLA's own on CPU.
    """
    last = holds.shape[-1] - 1
    index = jax.lax.broadcasted_iota(jnp.int32, holds.shape, holds.ndim - 1)
    return jnp.min(jnp.where(holds, index, last), axis=-1)  # the last where none is, as for NaN


def _draw(logits: Array, sampling: RowSampling, positions: Array) -> Array:
    """The Gumbel trick: the largest of the logits with noise is a draw from their softmax."""
    draws = candidates(logits, sampling) + _gumbel(sampling.seed, positions, logits.shape[-1])
    return _first(draws == jnp.max(draws, axis=-1, keepdims=True))


def _gumbel(seeds: Array, positions: Array, vocab: int) -> Array:
    """Noise ``[b, vocab]``: Threefry with key (seed, position) and the token id as counter."""
    shape = (seeds.shape[0], vocab)

    def rows(values: Array) -> Array:
        return jnp.broadcast_to(values.astype(jnp.uint32)[:, None], shape)

    counter = jax.lax.broadcasted_iota(jnp.uint32, shape, 1)
    bits, _ = threefry2x32_p.bind(
        rows(seeds), rows(positions), counter, jnp.zeros(shape, jnp.uint32)
    )
    # 23 bits and a half: never 0 or 1
    uniform = ((bits >> 9).astype(jnp.float32) + 0.5) * jnp.float32(2**-23)
    return -jnp.log(-jnp.log(uniform))


def candidates(logits: Array, sampling: RowSampling) -> Array:
    """Tempered logits ``[b, vocab]``, -inf where top-k or top-p cut a token off.

    Both keep or drop tokens of equal logit together: top-k keeps every token as likely as the
    k-th, top-p every token as likely as the one that completes the mass.
    """
    temperature = jnp.maximum(sampling.temperature, 1e-6)[:, None]
    tempered = logits / temperature
    keys = _ordered_bits(tempered)
    vocab = logits.shape[-1]
    top_k = jnp.where(sampling.top_k > 0, jnp.minimum(sampling.top_k, vocab), vocab)
    # A top_p below float32's range is 0 here, which no token at all would satisfy.
    top_p = jnp.maximum(sampling.top_p, 1e-30)
    # The difference first: a quotient computed twice may differ in its last bit, and then the
    # largest logit would not have the weight 1.
    weights = jnp.exp((logits - jnp.max(logits, axis=-1, keepdims=True)) / temperature)

    def mass(weights: Array, threshold: Array) -> Array:
        return jnp.sum(jnp.where(keys >= threshold[:, None], weights, 0.0), axis=-1)

    def bit(index: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        """One bit of the top-k threshold, then of the top-p one: one loop compiles once."""
        threshold, kth, goal = carry
        second = index >= 32
        candidate = threshold | (jnp.uint32(0x8000_0000) >> (index & 31).astype(jnp.uint32))
        counted = jnp.where(second, jnp.where(keys >= kth[:, None], weights, 0.0), 1.0)
        threshold = jnp.where(mass(counted, candidate) >= goal, candidate, threshold)
        turn = index == 31
        kth = jnp.where(turn, threshold, kth)
        goal = jnp.where(turn, top_p * mass(weights, kth), goal)
        return jnp.where(turn, jnp.uint32(0), threshold), kth, goal

    # A count of up to 2^24 tokens is exact in float32.
    zero = jnp.zeros(logits.shape[:1], jnp.uint32)
    start = (zero, zero, top_k.astype(jnp.float32))
    threshold, kth, _ = jax.lax.fori_loop(0, 64, bit, start)
    nucleus = (keys >= threshold[:, None]) | (sampling.top_p >= 1.0)[:, None]
    return jnp.where((keys >= kth[:, None]) & nucleus, tempered, -jnp.inf)


def _ordered_bits(values: Array) -> Array:
    """uint32 keys in the order of float32 ``values``."""
    bits = jax.lax.bitcast_convert_type(values, jnp.uint32)
    sign = jnp.uint32(0x8000_0000)
    return jnp.where(bits & sign, ~bits, bits | sign)
