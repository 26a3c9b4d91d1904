"""Operators as plain data: tensors, parameters, state and the kernels they run.

One declaration serves everyone. The Flax modules build their parameters from ``params``; caches
come from ``state``; the liveness rule reads ``inputs`` and ``outputs``; cost, traffic and memory
follow from ``kernels``. Nothing here imports JAX.

Sizes are per row (one slot, one token) unless they say otherwise. A dimension that a model axis
may shard is a :class:`Dim` with ``sharded=True``: ``tp`` ranks hold ``max(1, count // tp)`` of its
``count`` parts each, so that key/value heads fewer than ranks are replicated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from weavejax.models.config import LayerKind

OperatorKind = Literal["embed", "attn_in", "attn_core", "attn_out", "ffn", "head"]
LAYER_OPERATORS: tuple[OperatorKind, ...] = ("attn_in", "attn_core", "attn_out", "ffn")


@dataclass(frozen=True)
class Dim:
    """``count`` parts of ``size`` elements; ``axis`` names it for the sharding rules."""

    count: int
    size: int = 1
    sharded: bool = False
    axis: str | None = None

    @property
    def total(self) -> int:
        return self.count * self.size

    def local(self, ways: int) -> int:
        """Elements one of ``ways`` ranks holds."""
        return (max(1, self.count // ways) if self.sharded else self.count) * self.size


@dataclass(frozen=True)
class TensorSpec:
    """One named array of an operator's interface: ``shape`` per row, logical axes beside it."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[str | None, ...]

    @property
    def elements(self) -> int:
        """Elements per row."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class ParamSpec:
    """One weight in its canonical (unsharded) form; ``axes`` are logical names, ``None`` is kept.

    ``shared`` names a weight of another operator with the same content (tied embeddings): a
    group that holds both stores it once.
    """

    name: str
    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    shared: str | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class StateSpec:
    """One cache array of an operator, per slot.

    ``length`` is ``"context"`` (grows with the context), ``"window"`` (a ring of at most
    ``window`` positions) or ``"constant"``; ``dims`` are the elements per position (or in all,
    for a constant state), heads first.
    """

    name: str
    length: Literal["context", "window", "constant"]
    dims: tuple[Dim, ...]
    window: int | None = None
    dtype: Literal["model", "float32"] = "model"
    """Recurrent states are kept in float32 whatever the model's dtype."""
    positions_last: bool = False
    """Keep the positions behind a head's elements rather than before them."""

    def shape(self, rows: int, heads: int, context: int) -> tuple[int, ...]:
        """``[rows, heads, positions, ...]``, or ``[rows, heads, ..., positions]``."""
        first, *rest = self.dims
        elements = (first.size, *(dim.total for dim in rest))
        if self.length == "constant":
            return (rows, heads, *elements)
        places = (self.positions(context),)
        return (
            rows,
            heads,
            *((*elements, *places) if self.positions_last else (*places, *elements)),
        )

    def positions(self, context: int) -> int:
        if self.length == "constant":
            return 1
        return min(context, self.window) if self.window is not None else context

    def elements(self, context: int, heads_ways: int = 1) -> int:
        """Elements per slot on one rank when heads are cut ``heads_ways`` ways."""
        total = self.positions(context)
        for dim in self.dims:
            total *= dim.local(heads_ways)
        return total


# Kernels: what a device actually executes, named so that measured tables can be looked up.


@dataclass(frozen=True)
class Gemm:
    """``rows x k`` times ``k x n``; ``n`` is several packed parts (queries, keys, values)."""

    name: str
    k: Dim
    n: tuple[Dim, ...]

    def local(self, ways: int) -> tuple[int, int]:
        """(k, n) on one of ``ways`` ranks."""
        return self.k.local(ways), sum(part.local(ways) for part in self.n)


@dataclass(frozen=True)
class Attention:
    """Decode attention over a cache of ``context`` (or ``window``) positions."""

    q_heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None

    def local(self, ways: int) -> tuple[int, int]:
        """(query heads, key/value heads) on one of ``ways`` ranks."""
        return max(1, self.q_heads // ways), max(1, self.kv_heads // ways)


@dataclass(frozen=True)
class DeltaNet:
    """Decode step of a gated delta net: short convolution and recurrent update."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int


@dataclass(frozen=True)
class Experts:
    """Routed experts: ``gated`` projections up and one down, ``top_k`` of ``num_experts``."""

    hidden: int
    intermediate: int
    num_experts: int
    top_k: int


@dataclass(frozen=True)
class Elementwise:
    """Norms, RoPE, residual, gates: ``elements`` read or written per row."""

    name: str
    elements: int


Kernel = Gemm | Attention | DeltaNet | Experts | Elementwise


@dataclass(frozen=True, kw_only=True)
class OperatorSpec:
    """One operator of the sequence.

    ``all_reduce_elements`` is what tensor parallelism sums over the model axis per row after the
    operator (0: nothing). ``row_parallel`` operators shard rows instead of heads under
    ``attention_data_parallel``.
    """

    name: str
    """Unique in the model: ``embed``, ``layers.3.attn_core``, ``head``."""
    kind: OperatorKind
    index: int
    """Position in the model's operator sequence; ``embed`` is -1 (it precedes the first
    operator), ``head`` is 4 * layers."""
    layer: int | None
    layer_kind: LayerKind | None
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    params: tuple[ParamSpec, ...]
    state: tuple[StateSpec, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    all_reduce_elements: int = 0

    @property
    def reads_positions(self) -> bool:
        """Whether positions, activity and slots of its rows matter to it."""
        return self.kind == "attn_in" or bool(self.state)

    @property
    def row_parallel(self) -> bool:
        return self.kind in ("attn_in", "attn_core", "attn_out")

    @property
    def signature(self) -> tuple[object, ...]:
        """Equal for operators that the same executable can run with other weights.

        A feed-forward does not care which attention its layer has, nor the other way round.
        """
        if self.layer_kind is None:
            return (self.kind,)
        if self.kind == "ffn":
            return (self.kind, self.layer_kind.ffn)
        if self.kind == "attn_out":  # softmax layers differ in RoPE and cache only
            return (self.kind, self.layer_kind.attention == "linear")
        return (self.kind, self.layer_kind.attention)
