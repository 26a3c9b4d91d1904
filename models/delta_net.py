"""Gated delta net (Qwen3-Next's linear attention) as three operators.

``c`` counts key heads, ``r`` value heads of a key head. The state of a row is the last inputs of
the short convolution and one ``[key_dim, value_dim]`` matrix per value head, in float32.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from weavejax.models.norms import l2_norm, rms_norm
from weavejax.models.operator import Operator, Tensors
from weavejax.models.products import project
from weavejax.models.step import Step

Array = jax.Array


class DeltaNetIn(Operator):
    """Pre-norm and packed input projection: ``x`` to ``qkv``, ``ba`` and ``z``."""

    def __call__(self, tensors: Tensors, state: Tensors, step: Step) -> tuple[Tensors, Tensors]:
        x, weight, linear = tensors["x"], self.weight("in_proj"), self.config.linear
        assert linear is not None
        y = project(self.normalize("norm", x), weight)
        ratio = linear.num_value_heads // linear.num_key_heads
        values = ratio * linear.value_head_dim
        mixed = 2 * linear.key_head_dim + values
        outputs = {
            "qkv": y[..., :mixed],
            "z": y[..., mixed : mixed + values],
            "ba": y[..., mixed + values :],
        }
        return outputs, state


class DeltaNetCore(Operator):
    """Short convolution and recurrence: ``qkv ba`` to ``attn``."""

    def __call__(self, tensors: Tensors, state: Tensors, step: Step) -> tuple[Tensors, Tensors]:
        linear = self.config.linear
        assert linear is not None
        mixed, window = _convolve(tensors["qkv"], self.weight("conv"), state["conv"], step)
        dk = linear.key_head_dim
        q, k, v = mixed[..., :dk], mixed[..., dk : 2 * dk], mixed[..., 2 * dk :]
        ratio = linear.num_value_heads // linear.num_key_heads
        v = v.reshape(*v.shape[:3], ratio, linear.value_head_dim)
        ba = tensors["ba"].astype(jnp.float32)
        beta = jax.nn.sigmoid(ba[..., :ratio])
        rate = jnp.exp(self.weight("a_log").astype(jnp.float32))
        drift = jax.nn.softplus(ba[..., ratio:] + self.weight("dt_bias").astype(jnp.float32))
        out, memory = delta_rule(
            l2_norm(q) * dk**-0.5,
            l2_norm(k),
            v,
            jnp.exp(-rate * drift),
            beta,
            step.active,
            _read(state["recurrent"], step),
        )
        state = {
            "conv": step.write(state["conv"], window),
            "recurrent": step.write(state["recurrent"], memory),
        }
        attn = out.reshape(*out.shape[:3], -1).astype(tensors["qkv"].dtype)
        return {"attn": attn}, state


class DeltaNetOut(Operator):
    """Gated norm, output projection and residual: ``attn z x`` to ``h``."""

    def __call__(self, tensors: Tensors, state: Tensors, step: Step) -> tuple[Tensors, Tensors]:
        attn, z, weight = tensors["attn"], tensors["z"], self.weight("o")
        scale = self.weight("gated_norm")
        heads = (*attn.shape[:3], -1, scale.shape[0])
        y = rms_norm(attn.reshape(heads), scale, self.config.norm_eps)
        y = y * jax.nn.silu(z.reshape(heads).astype(jnp.float32)).astype(y.dtype)
        y = project(y.reshape(*attn.shape[:2], -1), weight.reshape(len(weight), -1))
        return {"h": self.residual(y, tensors["x"], step)}, state


def _read(cache: Array, step: Step) -> Array:
    """The state of this step's rows; a row at position 0 begins a new request."""
    rows = step.read(cache)
    first = (step.positions[:, 0] == 0).reshape(-1, *[1] * (rows.ndim - 1))
    return jnp.where(first, jnp.zeros_like(rows), rows)


def _convolve(x: Array, weight: Array, cache: Array, step: Step) -> tuple[Array, Array]:
    """Causal depthwise convolution and SiLU.

    Args:
        x: ``[b, t, c, m]`` inputs.
        weight: ``[c, m, kernel]``.
        cache: ``[slots, c, m, kernel - 1]``, the inputs before this step.
        step: rows and activity.

    Returns:
        ``[b, t, c, m]`` float32, and the last ``kernel - 1`` inputs of every row.
    """
    past, kernel = _read(cache, step), weight.shape[-1]
    line = jnp.concatenate([past, jnp.moveaxis(x, 1, -1).astype(past.dtype)], axis=-1)
    tokens = x.shape[1]
    wide, taps = line.astype(jnp.float32), weight.astype(jnp.float32)
    out = sum(wide[..., i : i + tokens] * taps[..., i, None] for i in range(kernel))
    ends = step.lengths[:, None] + jnp.arange(kernel - 1)
    window = jnp.take_along_axis(line, ends[:, None, None, :], axis=-1)
    return jnp.moveaxis(jax.nn.silu(jnp.asarray(out)), -1, 1), window


def delta_rule(
    q: Array, k: Array, v: Array, decay: Array, beta: Array, active: Array, memory: Array
) -> tuple[Array, Array]:
    """The gated delta rule, token by token, in float32.

    Per token: ``S *= decay; S += k (beta (v - k S)); out = q S``. Inactive tokens leave S alone.

    Args:
        q: ``[b, t, c, dk]``, scaled; ``k`` likewise.
        v: ``[b, t, c, r, dv]``.
        decay: ``[b, t, c, r]`` in (0, 1]; ``beta`` likewise.
        active: ``[b, t]`` bool.
        memory: ``[b, c, r, dk, dv]``, S before the first token.

    Returns:
        ``[b, t, c, r, dv]`` and S after the last token.
    """

    def token(
        carry: Array, inputs: tuple[Array, Array, Array, Array, Array, Array]
    ) -> tuple[Array, Array]:
        q, k, v, decay, beta, active = inputs
        faded = carry * decay[..., None, None]
        recalled = jnp.einsum("bck,bcrkv->bcrv", k, faded)
        delta = (v - recalled) * beta[..., None]
        memory = faded + jnp.einsum("bck,bcrv->bcrkv", k, delta)
        out = jnp.einsum("bck,bcrkv->bcrv", q, memory)
        return jnp.where(active[:, None, None, None, None], memory, carry), out

    sequence = jax.tree.map(lambda a: jnp.moveaxis(a, 1, 0), (q, k, v, decay, beta, active))
    memory, out = jax.lax.scan(token, memory, sequence)
    return jnp.moveaxis(out, 0, 1), memory
