"""Sampling on the device: greedy, temperature, top-k and top-p, one seed per request.

Nothing is sorted: the cut-offs are found by bisection over the ordered bit patterns of the
logits, 32 passes whatever the vocabulary. A row's draw depends on its seed and the position of
the new token alone, so that batch, slot and plan do not change what a request gets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array


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
    """
    greedy = jnp.argmax(logits, axis=-1).astype(jnp.int32)
    ids = jax.lax.cond(
        jnp.any(sampling.temperature > 0),
        lambda: jnp.where(sampling.temperature > 0, _draw(logits, sampling, positions), greedy),
        lambda: greedy,
    )
    chosen = jnp.take_along_axis(logits, ids[:, None], axis=-1)[:, 0]
    return ids, chosen - jax.nn.logsumexp(logits, axis=-1)


def _draw(logits: Array, sampling: RowSampling, positions: Array) -> Array:
    def noise(seed: Array, position: Array) -> Array:
        key = jax.random.fold_in(jax.random.key(seed), position)
        return jax.random.gumbel(key, logits.shape[1:], jnp.float32)

    draws = candidates(logits, sampling) + jax.vmap(noise)(sampling.seed, positions)
    return jnp.argmax(draws, axis=-1).astype(jnp.int32)


def candidates(logits: Array, sampling: RowSampling) -> Array:
    """Tempered logits ``[b, vocab]``, -inf where top-k or top-p cut a token off.

    Both keep or drop tokens of equal logit together: top-k keeps every token as likely as the
    k-th, top-p every token as likely as the one that completes the mass.
    """
    tempered = logits / jnp.maximum(sampling.temperature, 1e-6)[:, None]
    keys = _ordered_bits(tempered)
    vocab = logits.shape[-1]
    top_k = jnp.where(sampling.top_k > 0, jnp.minimum(sampling.top_k, vocab), vocab)

    def enough(threshold: Array) -> Array:
        return jnp.sum(keys >= threshold[:, None], axis=-1) >= top_k

    kept = keys >= _largest(enough, logits.shape[0])[:, None]
    masked = jnp.where(kept, tempered, -jnp.inf)
    probabilities = jax.nn.softmax(masked, axis=-1)

    # A top_p below float32's range is 0 here, which no token at all would satisfy.
    top_p = jnp.maximum(sampling.top_p, 1e-30)

    def heavy(threshold: Array) -> Array:
        mass = jnp.sum(jnp.where(keys >= threshold[:, None], probabilities, 0.0), axis=-1)
        return mass >= top_p

    nucleus = keys >= _largest(heavy, logits.shape[0])[:, None]
    nucleus = nucleus | (sampling.top_p >= 1.0)[:, None]
    return jnp.where(nucleus, masked, -jnp.inf)


def _ordered_bits(values: Array) -> Array:
    """uint32 keys in the order of float32 ``values``."""
    bits = jax.lax.bitcast_convert_type(values, jnp.uint32)
    sign = jnp.uint32(0x8000_0000)
    return jnp.where(bits & sign, ~bits, bits | sign)


def _largest(holds: Callable[[Array], Array], rows: int) -> Array:
    """The largest uint32 per row for which a falling predicate holds, bit by bit."""

    def bit(index: Array, threshold: Array) -> Array:
        candidate = threshold | (jnp.uint32(0x8000_0000) >> index.astype(jnp.uint32))
        return jnp.where(holds(candidate), candidate, threshold)

    return jax.lax.fori_loop(0, 32, bit, jnp.zeros((rows,), jnp.uint32))
