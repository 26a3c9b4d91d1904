"""Matrix products that accumulate in float32, whatever the operands' dtype."""

from __future__ import annotations

import jax
import jax.numpy as jnp

Array = jax.Array


def project(x: Array, weight: Array) -> Array:
    """``x @ weight`` in their dtype, accumulated in float32.

    XLA's CPU backend multiplies bfloat16 as it is only where the result is float32.

    Args:
        x: ``[..., k]``.
        weight: ``[k, n]``.

    Examples:
        >>> project(jnp.ones((2, 3, 4), jnp.bfloat16), jnp.ones((4, 5), jnp.bfloat16)).shape
        (2, 3, 5)
    """
    if x.dtype == jnp.float32:
        return x @ weight
    return jax.lax.platform_dependent(
        x,
        weight,
        cpu=lambda x, weight: _accumulated(x, weight).astype(x.dtype),
        default=lambda x, weight: x @ weight,
    )


def einsum_float32(form: str, a: Array, b: Array) -> Array:
    """``einsum`` of two arrays, accumulated and returned in float32."""
    return jnp.einsum(form, a, b, preferred_element_type=jnp.float32)


def project_float32(x: Array, weight: Array) -> Array:
    """``x @ weight.T``, accumulated and returned in float32.

    Args:
        x: ``[..., k]``.
        weight: ``[n, k]``.
    """
    return _accumulated(x, weight.T)


def _accumulated(x: Array, weight: Array) -> Array:
    """The product in float32.

    XLA's CPU backend widens the operands where there is a single row, which takes ten times as
    long as two: it gets another.
    """
    rows = x.reshape(-1, x.shape[-1])
    count = rows.shape[0]
    if count == 1 and x.dtype != jnp.float32:
        rows = jnp.concatenate([rows, jnp.zeros_like(rows)])
    y = jnp.matmul(rows, weight, preferred_element_type=jnp.float32)
    return y[:count].reshape(*x.shape[:-1], -1)
