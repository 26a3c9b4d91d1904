"""What one execution of a stage knows besides its tensors: positions, activity, ranks."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

Array = jax.Array


@dataclass(frozen=True, kw_only=True)
class Step:
    """Rows and tokens of one stage execution, as one device sees them.

    Shapes use ``b`` for rows and ``t`` for tokens of a row (1 in decode, the chunk in prefill).
    """

    positions: Array
    """``[b, t]`` int32: absolute position of every token."""
    active: Array
    """``[b, t]`` bool: tokens that are real. The others must change no state."""
    slots: Array | None
    """``[b]`` int32: cache row of each row, or ``None`` where row i is cache row i."""
    prefix: int
    """Positions of a context cache that attention reads: at least every position + 1, or all that
    the cache has."""
    axis: str | None = None
    """Mesh axis that heads or hidden widths are cut over; ``None`` when they are whole."""
    ranks: int = 1
    expert_ranks: int = 1
    """Ranks the experts are cut over: ``ranks`` or 1."""

    def all_reduce(self, value: Array) -> Array:
        """Sum partial results over the ranks."""
        return value if self.axis is None else jax.lax.psum(value, self.axis)

    def rank(self) -> Array:
        """This device's index along :attr:`axis`."""
        return jnp.int32(0) if self.axis is None else jax.lax.axis_index(self.axis)

    @property
    def lengths(self) -> Array:
        """``[b]`` int32: real tokens of each row; they come first."""
        return jnp.sum(self.active, axis=1, dtype=jnp.int32)

    def read(self, cache: Array) -> Array:
        """The cache rows of this step's rows."""
        return cache if self.slots is None else cache[self.slots]

    def write(self, cache: Array, rows: Array) -> Array:
        """Replace the cache rows of this step's rows that have an active token."""
        live = self.active.any(axis=1)
        if self.slots is None:
            return jnp.where(live.reshape(-1, *[1] * (rows.ndim - 1)), rows, cache)
        target = jnp.where(live, self.slots, cache.shape[0])  # out of bounds: dropped
        return cache.at[target].set(rows, mode="drop")
