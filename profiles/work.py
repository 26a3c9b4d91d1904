"""What a kernel must do: FLOPs and bytes of one launch on one rank, vectorised over sizes.

``shape`` are the fixed dimensions of :data:`weavejax.profiles.schema.KERNEL_AXES` (numbers or
arrays), ``sizes`` the grid axes. Arrays of NumPy and JAX both work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def kernel_work(
    kind: str, shape: Sequence[Any], sizes: Sequence[Any], element_bytes: int = 2
) -> tuple[Any, Any]:
    """(FLOPs, bytes) of one launch. ``all_reduce`` counts bytes sent over the link.

    Raises:
        ValueError: an unknown kernel kind.

    Examples:
        >>> kernel_work("gemm", (), (1, 4096, 4096))[0]
        33554432.0
    """
    if kind == "gemm":
        m, n, k = sizes
        return 2.0 * m * n * k, element_bytes * 1.0 * (n * k + m * (n + k))
    if kind == "attention":
        return _attention(shape, sizes, element_bytes)
    if kind == "experts":
        return _experts(shape, sizes, element_bytes)
    if kind == "delta_net":
        return _delta_net(shape, sizes, element_bytes)
    if kind == "all_reduce":
        (ranks,), (elements,) = shape, sizes
        # each rank sends and receives 2 (r - 1) / r of the message (reduce-scatter, all-gather)
        return 0.0 * elements, element_bytes * elements * 2.0 * (ranks - 1) / ranks
    raise ValueError(f"unknown kernel kind {kind!r}")


def _attention(shape: Sequence[Any], sizes: Sequence[Any], element_bytes: int) -> tuple[Any, Any]:
    q_heads, kv_heads, head_dim, window = shape
    batch, context = sizes
    length = np.where(np.asarray(window) > 0, np.minimum(context, window), context)
    flop = 4.0 * batch * q_heads * head_dim * length
    return flop, element_bytes * 2.0 * batch * head_dim * (kv_heads * length + q_heads)


def _experts(shape: Sequence[Any], sizes: Sequence[Any], element_bytes: int) -> tuple[Any, Any]:
    """Balanced routing, as in the shipped tables: n draws touch min(experts, n) experts."""
    hidden, intermediate, top_k, num_experts, tensor_parallel, expert_parallel = shape
    (tokens,) = sizes
    width = intermediate / tensor_parallel
    routed = tokens * top_k / expert_parallel
    active = np.minimum(num_experts, tokens * top_k) / expert_parallel
    traffic = np.maximum(active, 1.0) * 3 * hidden * width + routed * (2 * hidden + 3 * width)
    return 6.0 * routed * hidden * width, element_bytes * traffic


def _delta_net(shape: Sequence[Any], sizes: Sequence[Any], element_bytes: int) -> tuple[Any, Any]:
    """The recurrent state is float32, read and written once; the convolution keeps 3 columns."""
    key_heads, value_heads, key_dim, value_dim = shape
    (batch,) = sizes
    state = value_heads * key_dim * value_dim
    channels = value_heads * value_dim + 2 * key_heads * key_dim
    return batch * 8.0 * state, batch * (8.0 * state + element_bytes * 7.0 * channels)
