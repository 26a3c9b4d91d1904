"""The kernels an operator runs on one rank, each looked up."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weavejax.models.costs import operator_ways
from weavejax.models.specs import Attention, DeltaNet, Elementwise, Experts, Gemm, OperatorSpec
from weavejax.plan import Parallelism
from weavejax.profiles.analytic import roofline_s
from weavejax.profiles.schema import ANALYTIC
from weavejax.profiles.tables import Answer, KernelLookup


def operator_kernels(
    lookup: KernelLookup,
    operator: OperatorSpec,
    group: Parallelism,
    batches: np.ndarray,
    context: int,
) -> Iterator[tuple[str, Answer]]:
    """Name and (seconds, source codes) of every kernel: rules in :mod:`.estimator`."""
    ways, row_ways = operator_ways(operator, group)
    rows = np.ceil(batches / row_ways)
    for kernel in operator.kernels:
        match kernel:
            case Gemm():
                k, n = kernel.local(ways)
                yield kernel.name, lookup.gemm(rows, n, k)
            case Attention():
                shape = (*kernel.local(ways), kernel.head_dim, kernel.window or 0)
                yield "attention", lookup.attention(shape, rows, context)
            case Experts():
                yield "experts", lookup.plain("experts", _experts_shape(kernel, group), rows)
            case DeltaNet():
                heads = (max(1, kernel.key_heads // ways), max(1, kernel.value_heads // ways))
                shape = (*heads, kernel.key_dim, kernel.value_dim)
                yield "delta_net", lookup.plain("delta_net", shape, rows)
            case Elementwise():
                traffic = lookup.device.element_bytes * rows * kernel.elements
                time_s = roofline_s(lookup.device, "elementwise", 0.0, traffic)
                yield kernel.name, (time_s, np.full(rows.shape, ANALYTIC))
    if operator.all_reduce_elements and group.tensor_parallel > 1:
        share = _all_reduce_share(operator, group)
        if share:
            time_s, code = lookup.plain(
                "all_reduce",
                (group.tensor_parallel,),
                batches * operator.all_reduce_elements,
            )
            yield "all_reduce" if share == 1 else "gather_scatter", (share * time_s, code)


def _experts_shape(kernel: Experts, group: Parallelism) -> tuple[int, ...]:
    return (
        kernel.hidden,
        kernel.intermediate,
        kernel.top_k,
        kernel.num_experts,
        group.tensor_parallel // group.expert_parallel,
        group.expert_parallel,
    )


def _all_reduce_share(operator: OperatorSpec, group: Parallelism) -> float:
    """How much of an all-reduce over all rows follows the operator."""
    if group.attention_data_parallel == 1:
        return 1.0
    return 0.5 if operator.kind in ("attn_out", "ffn") else 1.0
