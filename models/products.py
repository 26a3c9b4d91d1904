"""Matrix products that give float32, whatever the operands' dtype."""

from __future__ import annotations

import jax
import jax.numpy as jnp

Array = jax.Array


def einsum_float32(form: str, a: Array, b: Array) -> Array:
    """``einsum`` of two arrays, accumulated and returned in float32.

    XLA's CPU backend has no bfloat16 product with a float32 result, so operands widen there.
    """
    if a.dtype == jnp.float32:
        return jnp.einsum(form, a, b)
    return jax.lax.platform_dependent(
        a,
        b,
        cpu=lambda a, b: jnp.einsum(form, a.astype(jnp.float32), b.astype(jnp.float32)),
        default=lambda a, b: jnp.einsum(form, a, b, preferred_element_type=jnp.float32),
    )
