"""Normalisations, computed in float32 whatever the model's dtype."""

from __future__ import annotations

import jax
import jax.numpy as jnp

Array = jax.Array


def rms_norm(x: Array, weight: Array, eps: float, offset: float = 0.0) -> Array:
    """Root-mean-square norm over the last axis, times ``weight + offset``."""
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide * scale * (weight.astype(jnp.float32) + offset)).astype(x.dtype)


def l2_norm(x: Array, eps: float = 1e-6) -> Array:
    """Scale the last axis to unit length; ``x`` is float32."""
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + eps)


def softcap(x: Array, cap: float | None) -> Array:
    """Squash into (-cap, cap); ``None`` leaves ``x`` alone."""
    return x if cap is None else jnp.tanh(x / cap) * cap
