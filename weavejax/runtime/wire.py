"""What a device does with travelling tensors and rows inside ``shard_map``: gather and cut."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from weavejax.meshes.submesh import MODEL
from weavejax.models.specs import TensorSpec
from weavejax.plan import Parallelism
from weavejax.runtime.sharding import wire_is_cut

Array = jax.Array


def share_rows(value: Array, ranks: int) -> Array:
    """This rank's share of the rows, which are the same on every rank."""
    size = value.shape[0] // ranks
    return jax.lax.dynamic_slice_in_dim(value, jax.lax.axis_index(MODEL) * size, size)


def gather_rows(value: Array) -> Array:
    """All ranks' rows."""
    return jax.lax.all_gather(value, MODEL, axis=0, tiled=True)


@dataclass(frozen=True)
class Wire:
    """Between the wire form of tensors and what operators of one group compute on."""

    parallelism: Parallelism

    @property
    def by_rows(self) -> bool:
        return self.parallelism.attention_data_parallel > 1

    def enter(self, tensor: TensorSpec, value: Array) -> Array:
        """Wire form to operator form: all of ``x``, this rank's heads."""
        ranks = self.parallelism.tensor_parallel
        if self.by_rows or ranks == 1 or not tensor.shape:
            return value
        cut = wire_is_cut(tensor, self.parallelism)
        if "hidden" in tensor.axes:
            return jax.lax.all_gather(value, MODEL, axis=2, tiled=True) if cut else value
        if cut:
            return value
        heads = tensor.shape[0]  # fewer heads than ranks: this rank's is one of them
        index = jax.lax.axis_index(MODEL) * heads // ranks
        return jax.lax.dynamic_slice_in_dim(value, index, 1, axis=2)

    def leave(self, tensor: TensorSpec, value: Array) -> Array:
        """Operator form to wire form."""
        ranks = self.parallelism.tensor_parallel
        if self.by_rows or ranks == 1 or not tensor.shape:
            return value
        cut = wire_is_cut(tensor, self.parallelism)
        if "hidden" in tensor.axes:
            if not cut:
                return value
            size = value.shape[2] // ranks
            start = jax.lax.axis_index(MODEL) * size
            return jax.lax.dynamic_slice_in_dim(value, start, size, axis=2)
        if cut:
            return value
        every = jax.lax.all_gather(value, MODEL, axis=2, tiled=True)
        return every[:, :, :: ranks // tensor.shape[0]]
