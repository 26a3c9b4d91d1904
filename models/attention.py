"""Softmax attention as three operators: projections, core, output.

Heads come in groups ``g`` that share one key/value head; ``h`` counts query heads of a group.
The key cache is ``[slots, g, d, positions]`` and the value cache ``[slots, g, positions, d]``, so
that both products of a decode step run along contiguous memory. A full layer's cache holds
position p at p; a sliding layer's is a ring that holds it at p modulo its length.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from weavejax.models.norms import softcap
from weavejax.models.operator import Operator, Tensors
from weavejax.models.products import einsum_float32, project
from weavejax.models.rope import apply_rope
from weavejax.models.step import Step

Array = jax.Array
MASKED = -1e30
"""Added to the score of what a query may not see: large enough to leave nothing of it, and finite,
so that idle rows, which see nothing, stay finite."""

QUERY_BLOCK = 128
"""Queries of a row that attend together: their scores stay in a processor's cache."""


class AttentionIn(Operator):
    """Pre-norm, packed QKV projection, QK-norm and RoPE: ``x`` to ``q k v`` (and ``gate``)."""

    def __call__(self, tensors: Tensors, state: Tensors, step: Step) -> tuple[Tensors, Tensors]:
        config, x = self.config, tensors["x"]
        weight = self.weight("qkv")
        packed, width = weight.shape[1:3]
        y = project(self.normalize("norm", x), weight)
        if self.has("qkv_bias"):
            y = y + self.weight("qkv_bias")
        queries = (packed - 2) // (2 if config.attention_gate else 1)
        heads = (*x.shape[:2], -1, width)
        q = y[..., :queries, :].reshape(heads)
        k, v = y[..., -2, :], y[..., -1, :]
        if config.qk_norm:
            q, k = self.normalize("q_norm", q), self.normalize("k_norm", k)
        assert self.spec.layer_kind is not None
        rope = config.rope_of(self.spec.layer_kind.attention)
        outputs = {
            "q": apply_rope(q, step.positions, rope),
            "k": apply_rope(k, step.positions, rope),
            "v": v,
        }
        if config.attention_gate:
            outputs["gate"] = y[..., queries:-2, :].reshape(heads)
        return outputs, state


class AttentionCore(Operator):
    """Append to the cache and attend: ``q k v`` to ``attn``."""

    def __call__(self, tensors: Tensors, state: Tensors, step: Step) -> tuple[Tensors, Tensors]:
        q, k, v = tensors["q"], tensors["k"], tensors["v"]
        groups = k.shape[2]
        q = q.reshape(*q.shape[:2], groups, -1, q.shape[-1])
        ring = self.spec.state[0].length == "window"
        read = _read_ring if ring and q.shape[1] > 1 else _read_after_write
        keys, values, mask, state = read(state, k, v, step, ring)
        sinks = self.weight("sinks") if self.has("sinks") else None
        # A query sees nothing behind its own key. That is the key's place from the end, unless
        # padding reaches over the end of a cache that is read whole.
        ordered = ring or step.prefix < state["v"].shape[2]
        parts = []
        for start in range(0, q.shape[1], QUERY_BLOCK):
            block = slice(start, start + QUERY_BLOCK)
            behind = max(0, q.shape[1] - block.stop) if ordered else 0
            seen = slice(keys.shape[3] - behind)
            parts.append(
                _attend(
                    q[:, block],
                    keys[..., seen],
                    values[:, :, seen],
                    mask[:, block, seen],
                    self.config.scale,
                    self.config.attention_softcap,
                    sinks,
                )
            )
        attn = jnp.concatenate(parts, axis=1)
        return {"attn": attn.reshape(*attn.shape[:2], -1, attn.shape[-1])}, state


class AttentionOut(Operator):
    """Gate, output projection, post-norm and residual: ``attn x`` (and ``gate``) to ``h``."""

    def __call__(self, tensors: Tensors, state: Tensors, step: Step) -> tuple[Tensors, Tensors]:
        attn, weight = tensors["attn"], self.weight("o")
        if self.config.attention_gate:
            attn = attn * jax.nn.sigmoid(tensors["gate"])
        y = project(attn.reshape(*attn.shape[:2], -1), weight.reshape(len(weight), -1))
        return {"h": self.residual(y, tensors["x"], step, bias="o_bias")}, state


def append_kv(state: Tensors, k: Array, v: Array, step: Step, ring: bool) -> Tensors:
    """Write ``k`` and ``v`` ``[b, t, g, d]`` at their positions; inactive tokens are dropped."""
    length = state["v"].shape[2]
    positions = step.positions % length if ring else step.positions
    kept = step.active
    if ring and k.shape[1] > length:  # of tokens that share a place only the last survives
        kept = kept & (step.positions >= step.positions[:, :1] + step.lengths[:, None] - length)
    positions = jnp.where(kept, positions, length)
    rows = jnp.arange(k.shape[0]) if step.slots is None else step.slots
    if positions.size == 1:
        # Written twice: XLA makes a slice update of a single one, and copies the whole cache for
        # everything that reads it.
        rows, positions, k, v = (jnp.concatenate([a, a]) for a in (rows, positions, k, v))
    keys, values = state["k"], state["v"]
    k, v = bits_as(k, keys.dtype), bits_as(v, values.dtype)
    rows = rows[:, None]
    return {
        "k": keys.at[rows, :, :, positions].set(k, mode="drop"),
        "v": values.at[rows, :, positions].set(v, mode="drop"),
    }


def bits_as(array: Array, dtype: Any) -> Array:
    """The same bits as another type of that width.

    A cache may be kept as integers: XLA's CPU backend widens all of a bfloat16 array to write one
    position of it.
    """
    return array if array.dtype == dtype else jax.lax.bitcast_convert_type(array, dtype)


def _read_after_write(
    state: Tensors, k: Array, v: Array, step: Step, ring: bool
) -> tuple[Array, Array, Array, Tensors]:
    """Append, then read the cache: full layers, and single tokens of sliding ones."""
    state = append_kv(state, k, v, step, ring)
    length = state["v"].shape[2]
    prefix = length if ring else min(step.prefix, length)
    keys = bits_as(step.read(state["k"][..., :prefix]), k.dtype)
    values = bits_as(step.read(state["v"][:, :, :prefix]), v.dtype)
    place = jnp.arange(prefix)
    queries = step.positions[..., None]
    if ring:  # a single token at p: place j holds the latest position <= p that maps there
        mask = queries - (queries - place) % length >= 0
    else:
        mask = place <= queries
    return keys, values, mask, state


def _read_ring(
    state: Tensors, k: Array, v: Array, step: Step, ring: bool
) -> tuple[Array, Array, Array, Tensors]:
    """Read the ring as it was before the chunk, with the chunk beside it; then append."""
    length = state["v"].shape[2]
    keys = bits_as(step.read(state["k"]), k.dtype)
    keys = jnp.concatenate([keys, k.transpose(0, 2, 3, 1)], axis=3)
    values = bits_as(step.read(state["v"]), v.dtype)
    values = jnp.concatenate([values, v.swapaxes(1, 2)], axis=2)
    start = step.positions[:, :1]
    held = start - 1 - (start - 1 - jnp.arange(length)) % length
    places = jnp.concatenate([held, step.positions], axis=1)[:, None, :]
    queries = step.positions[..., None]
    mask = (places >= 0) & (places <= queries) & (places > queries - length)
    return keys, values, mask, append_kv(state, k, v, step, ring)


def _attend(
    q: Array,
    keys: Array,
    values: Array,
    mask: Array,
    scale: float,
    cap: float | None,
    sinks: Array | None,
) -> Array:
    """Masked softmax attention in float32.

    Args:
        q: ``[b, t, g, h, d]``.
        keys: ``[b, g, d, p]``.
        values: ``[b, g, p, d]``.
        mask: ``[b, t, p]``, true where a query may look.
        scale: multiplier of the scores.
        cap: soft cap of the scores.
        sinks: ``[g, h]`` logits that take part in the softmax and hold no value.

    Returns:
        ``[b, t, g, h, d]`` in the dtype of ``q``.
    """
    rows, tokens, groups, heads, width = q.shape
    # One product per row and group, all its queries together.
    queries = q.transpose(0, 2, 1, 3, 4).reshape(rows, groups, tokens * heads, width)
    scores = einsum_float32("bgqd,bgdp->bgqp", queries, keys) * scale
    scores = softcap(scores, cap).reshape(rows, groups, tokens, heads, -1)
    # Added and not selected: the addend is made once for all layers of a program.
    unseen = jnp.where(mask, 0.0, MASKED)[:, None, :, None, :]
    scores = scores + unseen
    top = jnp.max(scores, axis=-1, keepdims=True)
    if sinks is not None:
        logit = sinks.astype(jnp.float32)[None, :, None, :, None]
        top = jnp.maximum(top, logit)
    weights = jnp.exp(scores - top)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    if sinks is not None:
        total = total + jnp.exp(logit - top)
    weights = weights.astype(values.dtype).reshape(rows, groups, tokens * heads, -1)
    out = einsum_float32("bgqp,bgpd->bgqd", weights, values)
    out = out.reshape(rows, groups, tokens, heads, width) / total
    return out.transpose(0, 2, 1, 3, 4).astype(q.dtype)
