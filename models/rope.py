"""Rotary position embedding with the scalings of Llama 3, YaRN and linear interpolation."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from weavejax.models.config import RopeConfig

Array = jax.Array


def rope_frequencies(rope: RopeConfig, head_dim: int) -> tuple[np.ndarray, float]:
    """Inverse frequencies and the multiplier of sine and cosine.

    Returns:
        ``[rotated / 2]`` float32 radians per position, and YaRN's attention factor (else 1).
    """
    rotated = int(head_dim * rope.rotary_fraction)
    inverse = rope.theta ** -(np.arange(0, rotated, 2, dtype=np.float64) / rotated)
    match rope.scaling:
        case "none":
            return inverse.astype(np.float32), 1.0
        case "linear":
            return (inverse / rope.factor).astype(np.float32), 1.0
        case "llama3":
            return _llama3(inverse, rope).astype(np.float32), 1.0
        case "yarn":
            factor = rope.attention_factor
            if factor is None:
                factor = 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0
            return _yarn(inverse, rope, rotated).astype(np.float32), factor


def _llama3(inverse: np.ndarray, rope: RopeConfig) -> np.ndarray:
    """Long wavelengths are interpolated, short ones kept, those between blended."""
    wavelength = 2 * math.pi / inverse
    low, high = rope.low_freq_factor, rope.high_freq_factor
    smooth = (rope.original_max_position / wavelength - low) / (high - low)
    smooth = np.clip(smooth, 0.0, 1.0)
    return (1 - smooth) * inverse / rope.factor + smooth * inverse


def _yarn(inverse: np.ndarray, rope: RopeConfig, rotated: int) -> np.ndarray:
    """Blend interpolation and extrapolation by how often a dimension turns in pre-training."""

    def dimension(rotations: float) -> float:
        period = rope.original_max_position / (rotations * 2 * math.pi)
        return rotated * math.log(period) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotated - 1)
    ramp = (np.arange(rotated // 2) - low) / max(high - low, 1e-3)
    keep = 1 - np.clip(ramp, 0, 1)
    return inverse / rope.factor * (1 - keep) + inverse * keep


def apply_rope(x: Array, positions: Array, rope: RopeConfig) -> Array:
    """Rotate the leading part of the head dimension; pairs are (i, i + rotated / 2).

    Args:
        x: ``[b, t, heads, head_dim]``.
        positions: ``[b, t]`` int32.
        rope: which frequencies.
    """
    frequencies, factor = rope_frequencies(rope, x.shape[-1])
    half = frequencies.shape[0]
    angles = positions.astype(jnp.float32)[..., None, None] * frequencies
    # The barrier keeps sine and cosine out of the loop over heads, which would compute them anew
    # for each. Halves are swapped by a reversed axis: a concatenation does not vectorise.
    turn = jnp.stack([jnp.cos(angles), jnp.sin(angles)]) * factor
    cos, sin = jax.lax.optimization_barrier(turn)[:, ..., None, :]
    wide = x.astype(jnp.float32)
    pairs = wide[..., : 2 * half].reshape(*x.shape[:-1], 2, half)
    sign = np.array([[-1.0], [1.0]], np.float32)
    turned = (pairs * cos + jnp.flip(pairs, -2) * (sign * sin)).reshape(*x.shape[:-1], 2 * half)
    if x.shape[-1] > 2 * half:
        turned = jnp.concatenate([turned, wide[..., 2 * half :]], axis=-1)
    return turned.astype(x.dtype)
