"""Arrays that live on a group's devices: weights and caches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from weavejax.models.loading import Model
from weavejax.models.sequence import operator_sequence
from weavejax.models.specs import OperatorSpec
from weavejax.plan import DeviceGroup
from weavejax.runtime.sharding import param_spec, state_dtype, state_shape, state_spec

Array = jax.Array
Weights = dict[int, dict[str, Array]]
"""Operator index to its parameters by name."""


def load_weights(
    model: Model,
    group: DeviceGroup,
    mesh: Mesh,
    indices: Iterable[int],
    dtype: Any,
    progress: Callable[[], None] = lambda: None,
) -> Weights:
    """Read the operators ``indices`` of a model onto one group's devices, one at a time.

    A weight tied to another operator's that the group holds too is stored once.
    """
    sequence = {op.index: op for op in operator_sequence(model.config, group.heads_ways)}
    names = {op.name: op.index for op in sequence.values()}
    weights: Weights = {}
    for index in sorted(indices):
        op = sequence[index]
        arrays: dict[str, Array] = {}
        for param in op.params:
            source, _, name = (param.shared or "").partition(".")
            if param.shared and names[source] in weights:
                arrays[param.name] = weights[names[source]][name]
        specs = {param.name: param_spec(param, group.parallelism) for param in op.params}
        if len(arrays) < len(specs):
            for name, value in model.iter_params(op, heads_ways=group.heads_ways, dtype=dtype):
                if name not in arrays:
                    placed = jax.device_put(value, NamedSharding(mesh, specs[name]))
                    arrays[name] = jax.block_until_ready(placed)
                del value  # before the next one is read
        weights[index] = arrays
        progress()
    return weights


def make_caches(
    op: OperatorSpec, group: DeviceGroup, mesh: Mesh, rows: int, context: int, dtype: Any
) -> dict[str, Array]:
    """Zeroed caches of one operator for one microbatch of ``rows`` rows over all replicas."""
    sharding = NamedSharding(mesh, state_spec(group.parallelism))
    return {
        state.name: jnp.zeros(
            state_shape(state, op, rows, context, group.parallelism),
            state_dtype(state, dtype, mesh),
            device=sharding,
        )
        for state in op.state
    }


def live_bytes(trees: Iterable[Any]) -> dict[Any, int]:
    """Bytes every device holds for the arrays of ``trees``, each buffer once."""
    seen: set[int] = set()
    total: dict[Any, int] = {}
    for array in jax.tree.leaves(list(trees)):
        if id(array) in seen:
            continue
        seen.add(id(array))
        for shard in array.addressable_shards:
            total[shard.device] = total.get(shard.device, 0) + shard.data.nbytes
    return total
