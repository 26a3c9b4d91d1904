"""The one table from logical axes to mesh axes, and the wire form of tensors.

Weights name logical axes (:class:`weavejax.models.specs.ParamSpec`); this file alone says which
of them the ``model`` axis of a group's mesh cuts. Between stages a tensor travels in its *wire
form*: whole key/value heads, rows cut over ``replica``, and the first feature axis cut over
``model`` where it divides, so that each row crosses the network once.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from weavejax.meshes.submesh import MODEL, REPLICA
from weavejax.models.specs import OperatorSpec, ParamSpec, StateSpec, TensorSpec
from weavejax.plan import Parallelism


def axis_rules(parallelism: Parallelism) -> dict[str, str | None]:
    """Logical axis to mesh axis under one group's parallelism."""
    experts = parallelism.expert_parallel > 1
    return {
        "vocab": MODEL,
        "mlp": MODEL,
        "experts": MODEL if experts else None,
        "expert_mlp": None if experts else MODEL,
        "heads": MODEL if parallelism.heads_ways > 1 else None,
    }


def param_spec(param: ParamSpec, parallelism: Parallelism) -> PartitionSpec:
    """How one weight is cut.

    Raises:
        ValueError: two axes of the weight map to the same mesh axis.
    """
    rules = axis_rules(parallelism)
    axes = [None if axis is None else rules[axis] for axis in param.axes]
    used = [axis for axis in axes if axis is not None]
    if len(used) != len(set(used)):
        raise ValueError(
            f"every axis of weight {param.name!r} needs a mesh axis of its own, "
            f"got {param.axes} -> {axes}"
        )
    return PartitionSpec(*axes)


def row_spec(parallelism: Parallelism) -> PartitionSpec:
    """Rows of the whole replica: control data of a group."""
    return PartitionSpec(REPLICA)


def wire_rows(parallelism: Parallelism) -> str | tuple[str, str]:
    """Mesh axes the rows of a travelling tensor are cut over."""
    return (REPLICA, MODEL) if parallelism.attention_data_parallel > 1 else REPLICA


def wire_is_cut(tensor: TensorSpec, parallelism: Parallelism) -> bool:
    """Whether the first feature axis of a travelling tensor is cut over the model axis."""
    ways = parallelism.tensor_parallel
    if parallelism.attention_data_parallel > 1 or ways == 1 or not tensor.shape:
        return False
    return tensor.shape[0] % ways == 0


def wire_spec(tensor: TensorSpec, parallelism: Parallelism) -> PartitionSpec:
    """The wire form of ``[rows, tokens, *shape]``; ids are ``[rows]``."""
    rows = wire_rows(parallelism)
    if not tensor.shape:
        return PartitionSpec(rows)
    cut = MODEL if wire_is_cut(tensor, parallelism) else None
    return PartitionSpec(rows, None, cut)


def state_spec(parallelism: Parallelism) -> PartitionSpec:
    """Caches: rows first, heads second."""
    if parallelism.attention_data_parallel > 1:
        return PartitionSpec((REPLICA, MODEL))
    return PartitionSpec(REPLICA, MODEL if parallelism.tensor_parallel > 1 else None)


def state_shape(
    state: StateSpec, op: OperatorSpec, rows: int, context: int, parallelism: Parallelism
) -> tuple[int, ...]:
    """Global shape of one cache array (:meth:`StateSpec.shape`).

    Heads fewer than ranks are repeated, one for each rank.
    """
    first = state.dims[0]
    heads = max(first.count, parallelism.heads_ways) if first.sharded else first.count
    return state.shape(rows, heads, context)


def state_dtype(state: StateSpec, dtype: Any, mesh: Mesh) -> Any:
    """What a cache of a model in ``dtype`` is kept as.

    On a CPU, positions of two bytes are kept as integers
    (:func:`weavejax.models.attention.bits_as`).
    """
    if state.dtype == "float32":
        return jnp.float32
    narrow = jnp.dtype(dtype).itemsize == 2 and state.length != "constant"
    return jnp.uint16 if narrow and mesh.devices.flat[0].platform == "cpu" else dtype
