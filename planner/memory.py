"""Memory of one replica by kind (design section 5).

Weights of the owner's operators under its parallelism, cache of all its slots at the planned
context, buffers, and a reserve. Everything is counted on one device (all ranks of a replica hold
the same) and reported for the whole replica.

Buffers of one device are the largest operator's inputs, widest intermediate and outputs for one
microbatch, plus, for each microbatch, an interface that has arrived, one that leaves (both
travel cut over the devices) and what is kept back for a later stage of the group, at most one
operator's inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weavejax.models.costs import cache_bytes, interface_bytes, operator_ways, stored_params
from weavejax.models.specs import Experts, Gemm, OperatorSpec, TensorSpec
from weavejax.plan import DeviceGroup, Parallelism

DTYPE_BYTES = 2
"""bfloat16 weights, caches and activations, unless a profile was measured with others."""

RESERVE_FRACTION = 0.10
"""Part of a device that a plan leaves to the runtime: context, fragmentation, workspaces."""


@dataclass(frozen=True, kw_only=True)
class ReplicaMemory:
    """Bytes of one replica, over all its devices."""

    weight_bytes: int
    cache_bytes: int
    buffer_bytes: int
    reserve_bytes: int
    memory_bytes: int
    """What its devices have."""

    @property
    def needed_bytes(self) -> int:
        return self.weight_bytes + self.cache_bytes + self.buffer_bytes + self.reserve_bytes

    @property
    def short_bytes(self) -> int:
        """Bytes that are missing; 0 or less when the replica fits."""
        return self.needed_bytes - self.memory_bytes


def widest_elements(op: OperatorSpec, parallelism: Parallelism) -> int:
    """Elements per row of an operator's largest intermediate on one rank (float32 counts twice).

    The head's logits are float32; routed experts hold their rows, gate, up and down at once.
    """
    ways, _ = operator_ways(op, parallelism)
    widest = 0
    for kernel in op.kernels:
        if isinstance(kernel, Gemm):
            width = kernel.local(ways)[1]
            widest = max(widest, 2 * width if op.kind == "head" else width)
        elif isinstance(kernel, Experts):
            inner = 2 * kernel.intermediate // (ways // parallelism.expert_parallel)
            widest = max(widest, kernel.top_k * (2 * kernel.hidden + inner))
    return widest


def working_elements(op: OperatorSpec, parallelism: Parallelism) -> int:
    """Elements per row one rank holds while it runs an operator on its share of the rows."""
    ends = sum(tensor.elements for tensor in (*op.inputs, *op.outputs))
    return ends + widest_elements(op, parallelism)


def kept_elements(op: OperatorSpec) -> int:
    """Elements per row of an operator's inputs, the most a group keeps back between stages."""
    return sum(tensor.elements for tensor in op.inputs)


def widest_interfaces(
    interfaces: Sequence[Iterable[TensorSpec]],
    owners: Sequence[int],
    group: int,
    dtype_bytes: int = DTYPE_BYTES,
) -> int:
    """Bytes per row of the largest interface a group receives plus the largest it sends."""
    largest_in = largest_out = 0
    for index, tensors in enumerate(interfaces):
        source, target = owners[index], owners[(index + 1) % len(owners)]
        if source != target and group in (source, target):
            size = interface_bytes(tensors, dtype_bytes)
            largest_in = max(largest_in, size if target == group else 0)
            largest_out = max(largest_out, size if source == group else 0)
    return largest_in + largest_out


def replica_memory(
    operators: Sequence[OperatorSpec],
    group: DeviceGroup,
    *,
    microbatches: int,
    context: int,
    kv_heads: int,
    interface_bytes_per_row: int,
    device_memory_bytes: float,
    dtype_bytes: int = DTYPE_BYTES,
) -> ReplicaMemory:
    """Memory of one replica of a group.

    Args:
        operators: all the group owns, embed and head included where it does.
        group: its parallelism and resident batch (rows of one replica).
        microbatches: the buffers of operators hold one microbatch at a time.
        context: tokens each slot holds.
        kv_heads: the model's key/value heads.
        interface_bytes_per_row: :func:`widest_interfaces` of the group.
        device_memory_bytes: of one device.
        dtype_bytes: of a weight, cache entry or activation.
    """
    ways = group.tensor_parallel
    rows = group.resident_batch
    weights = dtype_bytes * stored_params(operators, group, kv_heads)
    cache = sum(cache_bytes(op, rows, context, group, dtype_bytes) for op in operators)
    working = max(working_elements(op, group) for op in operators) * (rows // microbatches)
    kept = max(kept_elements(op) for op in operators) * rows
    buffers = ways * dtype_bytes * (working + kept) + rows * interface_bytes_per_row
    memory = ways * int(device_memory_bytes)
    return ReplicaMemory(
        weight_bytes=ways * weights,
        cache_bytes=ways * cache,
        buffer_bytes=buffers,
        reserve_bytes=int(RESERVE_FRACTION * memory),
        memory_bytes=memory,
    )
