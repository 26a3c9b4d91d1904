"""FLOPs, bytes and parameters of operators, on one rank of one replica.

All take the number of rows (tokens of one decode step) the whole replica computes, and how the
group cuts its operators. They count; they do not estimate time (see :mod:`weavejax.profiles`).
"""

from __future__ import annotations

from collections.abc import Iterable

from weavejax.models.config import ModelConfig
from weavejax.models.sequence import operator_sequence
from weavejax.models.specs import (
    Attention,
    DeltaNet,
    Elementwise,
    Experts,
    Gemm,
    Kernel,
    OperatorSpec,
    ParamSpec,
    StateSpec,
)
from weavejax.plan import Parallelism

SINGLE = Parallelism()


def operator_ways(op: OperatorSpec, parallelism: Parallelism) -> tuple[int, int]:
    """(ways its heads or hidden width are cut, ways its rows are cut) for one operator."""
    if op.row_parallel:
        return parallelism.heads_ways, parallelism.attention_data_parallel
    return parallelism.tensor_parallel, 1


def kernel_flops(
    kernel: Kernel, rows: float, context: int, ways: int = 1, expert_ways: int = 1
) -> float:
    """Floating-point operations of one kernel on one rank; a multiply-add counts two."""
    match kernel:
        case Gemm():
            k, n = kernel.local(ways)
            return 2.0 * rows * k * n
        case Attention():
            heads, _ = kernel.local(ways)
            length = context if kernel.window is None else min(context, kernel.window)
            return 4.0 * rows * heads * kernel.head_dim * length
        case DeltaNet():
            heads = max(1, kernel.value_heads // ways)
            channels = heads * kernel.value_dim + 2 * kernel.key_dim * max(
                1, kernel.key_heads // ways
            )
            # decay, read, delta and write of the state, then the query's read
            return rows * (
                8.0 * heads * kernel.key_dim * kernel.value_dim
                + 2.0 * channels * kernel.conv_kernel
            )
        case Experts():
            return 6.0 * rows * kernel.top_k * kernel.hidden * kernel.intermediate / ways
        case Elementwise():
            return float(rows * kernel.elements)


def touched_experts(kernel: Experts, rows: float) -> float:
    """Expected number of experts that at least one of ``rows`` uniformly routed tokens picks."""
    miss = 1.0 - kernel.top_k / kernel.num_experts
    return kernel.num_experts * (1.0 - miss**rows)


def kernel_bytes(
    kernel: Kernel, rows: float, context: int, ways: int = 1, dtype_bytes: int = 2
) -> float:
    """Bytes one kernel reads and writes in device memory on one rank."""
    match kernel:
        case Gemm():
            k, n = kernel.local(ways)
            return dtype_bytes * (k * n + rows * (k + n))
        case Attention():
            heads, kv_heads = kernel.local(ways)
            length = context if kernel.window is None else min(context, kernel.window)
            cache = 2 * kv_heads * kernel.head_dim * length
            return dtype_bytes * rows * (cache + 2 * heads * kernel.head_dim)
        case DeltaNet():
            heads = max(1, kernel.value_heads // ways)
            state = heads * kernel.key_dim * kernel.value_dim
            channels = heads * kernel.value_dim + 2 * kernel.key_dim * max(
                1, kernel.key_heads // ways
            )
            conv = 2 * (kernel.conv_kernel - 1) * channels
            return rows * (2 * 4.0 * state + dtype_bytes * (conv + channels))
        case Experts():
            weights = 3 * kernel.hidden * kernel.intermediate
            routed = rows * kernel.top_k
            activations = routed * (2 * kernel.hidden + 3 * kernel.intermediate)
            return dtype_bytes * (touched_experts(kernel, rows) * weights + activations) / ways
        case Elementwise():
            return float(dtype_bytes * rows * kernel.elements)


def operator_flops(
    op: OperatorSpec, rows: float, context: int, parallelism: Parallelism = SINGLE
) -> float:
    """FLOPs of an operator on one rank, for ``rows`` rows of the replica."""
    ways, row_ways = operator_ways(op, parallelism)
    return sum(kernel_flops(kernel, rows / row_ways, context, ways) for kernel in op.kernels)


def operator_bytes(
    op: OperatorSpec,
    rows: float,
    context: int,
    parallelism: Parallelism = SINGLE,
    dtype_bytes: int = 2,
) -> float:
    """Device-memory traffic of an operator on one rank, for ``rows`` rows of the replica."""
    ways, row_ways = operator_ways(op, parallelism)
    return sum(
        kernel_bytes(kernel, rows / row_ways, context, ways, dtype_bytes) for kernel in op.kernels
    )


def param_elements(
    param: ParamSpec, op: OperatorSpec, parallelism: Parallelism = SINGLE, kv_heads: int = 0
) -> int:
    """Elements of one weight on one rank.

    ``kv_heads`` is the model's number of key/value heads: packed projections of more ranks than
    those repeat a key and a value head per rank.
    """
    ways, _ = operator_ways(op, parallelism)
    elements = param.elements
    for axis in param.axes:
        if axis in ("vocab", "mlp"):
            return elements // parallelism.tensor_parallel
        if axis in ("experts", "expert_mlp"):
            return elements // parallelism.tensor_parallel
        if axis == "heads" and param.name in ("qkv", "qkv_bias") and ways > kv_heads > 0:
            groups, packed = param.shape[-3], param.shape[-2]
            per_part = elements // (groups * packed)
            return per_part * (groups * (packed - 2) // ways + 2)
        if axis == "heads":
            return elements // ways
    return elements


def operator_params(op: OperatorSpec, parallelism: Parallelism = SINGLE, kv_heads: int = 0) -> int:
    """Weights of an operator on one rank, tied ones included."""
    return sum(param_elements(param, op, parallelism, kv_heads) for param in op.params)


def stored_params(
    ops: Iterable[OperatorSpec], parallelism: Parallelism = SINGLE, kv_heads: int = 0
) -> int:
    """Weights one rank of a group stores for ``ops``: a tied weight once."""
    ops = tuple(ops)
    names = {f"{op.name}.{param.name}" for op in ops for param in op.params}
    return sum(
        param_elements(param, op, parallelism, kv_heads)
        for op in ops
        for param in op.params
        if param.shared is None or param.shared not in names
    )


def model_params(config: ModelConfig) -> int:
    """Parameters of the whole model, tied embeddings counted once."""
    return stored_params(operator_sequence(config))


def state_bytes(
    state: StateSpec, op: OperatorSpec, context: int, parallelism: Parallelism, dtype_bytes: int = 2
) -> int:
    """Bytes of one cache array per slot of the replica, on one rank that holds the slot."""
    ways, _ = operator_ways(op, parallelism)
    width = 4 if state.dtype == "float32" else dtype_bytes
    return width * state.elements(context, ways)


def cache_bytes(
    op: OperatorSpec,
    rows: int,
    context: int,
    parallelism: Parallelism = SINGLE,
    dtype_bytes: int = 2,
) -> int:
    """Cache of an operator on one rank for ``rows`` slots of the replica."""
    _, row_ways = operator_ways(op, parallelism)
    local_rows = -(-rows // row_ways)
    return local_rows * sum(
        state_bytes(state, op, context, parallelism, dtype_bytes) for state in op.state
    )


def interface_bytes(tensors: Iterable[object], dtype_bytes: int = 2) -> int:
    """Bytes per row that cross a boundary; token ids are four bytes."""
    total = 0
    for tensor in tensors:
        elements, name = tensor.elements, tensor.name  # type: ignore[attr-defined]
        total += 4 if name == "ids" else dtype_bytes * elements
    return total
