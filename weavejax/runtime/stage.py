"""Stages as compiled programs: ``jit`` of ``shard_map`` over a group's mesh, ahead of time.

One program serves every stage occurrence with the same operators (by kind), interface and shape,
whatever the block: weights and caches are arguments. ``embed`` and ``head`` are programs of their
own, so that the first and last occurrence share the others' programs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from weavejax.meshes.submesh import MODEL
from weavejax.models.build import build_operator
from weavejax.models.config import ModelConfig
from weavejax.models.operator import Tensors
from weavejax.models.specs import OperatorSpec, TensorSpec
from weavejax.models.step import Step
from weavejax.plan import Parallelism
from weavejax.runtime.sampling import RowSampling, greedy, sample
from weavejax.runtime.wire import Wire, gather_rows, share_rows

Array = jax.Array
CallOperator = Callable[[OperatorSpec, Tensors, Tensors, Tensors, Step], tuple[Tensors, Tensors]]
"""``op inputs cache weights step`` to the outputs and the new cache."""


class Control(NamedTuple):
    """Which rows a pass works on, ``[rows]`` int32 each.

    Programs take them as columns of one array ``[rows, 2]``, or ``[rows, 3]`` in prefill: every
    argument costs the host.
    """

    starts: Any
    """Position of each row's first token."""
    lengths: Any
    """Real tokens of each row; 0 where idle."""
    slots: Any = None
    """Prefill: the cache row inside each row's cell."""

    @classmethod
    def of(cls, columns: Array) -> Control:
        """From the columns of an array."""
        return cls(*(columns[:, i] for i in range(columns.shape[1])))

    @staticmethod
    def columns(*, prefill: bool) -> int:
        """How many columns the array has."""
        return 3 if prefill else 2


@dataclass(frozen=True, kw_only=True)
class StageShape:
    """What a program is compiled for, besides its operators."""

    rows: int
    """Rows over all replicas: of a microbatch in decode, one per cell in prefill."""
    tokens: int
    """1 in decode, the chunk in prefill."""
    prefix: int
    """Positions of context caches that attention reads; 0 where nothing reads one."""
    prefill: bool
    cells: int
    """Prefill: cells of the microbatch (see :mod:`weavejax.runtime.cells`)."""
    cell_rows: int
    """Cache rows per cell."""


def role(name: str) -> str:
    """``q.3`` to ``q``: what operators call a tensor."""
    return name.split(".")[0]


def make_step(
    control: Array | None, shape: StageShape, parallelism: Parallelism, *, by_rows: bool
) -> Step:
    """The step of one device from control data of its replica.

    ``by_rows``: this device computes only its share of the rows (attention data parallelism).
    Without ``control``, for operators that read no positions, it is that of one idle row.
    """
    ranks = parallelism.tensor_parallel
    if control is None:
        control = jnp.zeros((1, Control.columns(prefill=shape.prefill)), jnp.int32)
    elif by_rows:
        control = share_rows(control, ranks)
    starts, lengths, slots = Control.of(control)
    if slots is not None:
        slots = jnp.arange(slots.shape[0], dtype=jnp.int32) * shape.cell_rows + slots
    steps = jnp.arange(shape.tokens, dtype=jnp.int32)
    whole = by_rows or ranks == 1
    return Step(
        positions=starts[:, None] + steps,
        active=steps < lengths[:, None],
        slots=slots,
        prefix=shape.prefix,
        axis=None if whole else MODEL,
        ranks=1 if whole else ranks,
        expert_ranks=1 if whole else parallelism.expert_parallel,
    )


def operator_caller(config: ModelConfig) -> CallOperator:
    """A function that runs an operator, and traces those that are alike once.

    Layers repeat the same operators, and programs differ in few of them. What it has traced lives
    as long as the function.
    """

    @partial(jax.jit, static_argnames=("op", "constants"))
    def traced(
        op: OperatorSpec,
        constants: tuple[tuple[str, Any], ...],
        arrays: dict[str, Array | None],
        inputs: Tensors,
        cache: Tensors,
        weights: Tensors,
    ) -> tuple[Tensors, Tensors]:
        step = Step(**arrays, **dict(constants))  # type: ignore[arg-type]
        return build_operator(op, config, weights)(inputs, cache, step)

    def call(
        op: OperatorSpec, inputs: Tensors, cache: Tensors, weights: Tensors, step: Step
    ) -> tuple[Tensors, Tensors]:
        alike = replace(op, name=op.kind, index=0, layer=0, inputs=(), outputs=())
        reads_context = any(state.length == "context" for state in op.state)
        constants = {
            "prefix": step.prefix if reads_context else 0,
            "axis": step.axis,
            "ranks": step.ranks,
            "expert_ranks": step.expert_ranks,
        }
        arrays = {"positions": step.positions, "active": step.active, "slots": step.slots}
        if not op.reads_positions:  # alike whatever its stage knows of the rows
            arrays = dict.fromkeys(arrays)
        return traced(alike, tuple(constants.items()), arrays, inputs, cache, weights)

    return call


def run_operators(
    operators: tuple[OperatorSpec, ...],
    call: CallOperator,
    parallelism: Parallelism,
    shape: StageShape,
    reads: tuple[TensorSpec, ...],
    writes: tuple[TensorSpec, ...],
    state: tuple[dict[str, Array], ...],
    tensors: tuple[Array, ...],
    control: Array | None,
    params: tuple[dict[str, Array], ...],
) -> tuple[tuple[Array, ...], tuple[dict[str, Array], ...]]:
    """Layer operators of a stage on one device (inside ``shard_map``).

    Returns:
        ``writes`` in wire form, and the new state of every operator.
    """
    wire = Wire(parallelism)
    shared = make_step(control, shape, parallelism, by_rows=False)
    own = make_step(control, shape, parallelism, by_rows=True) if wire.by_rows else shared
    # Values carry whether they are this rank's rows or the whole replica's.
    values: dict[str, tuple[bool, Array]] = {
        tensor.name: (wire.by_rows, wire.enter(tensor, value))
        for tensor, value in zip(reads, tensors, strict=True)
    }

    def fetch(name: str, by_rows: bool) -> Array:
        held_by_rows, value = values[name]
        if held_by_rows and not by_rows:
            value = gather_rows(value)
        elif by_rows and not held_by_rows:
            value = share_rows(value, parallelism.tensor_parallel)
        else:
            return value
        values[name] = (by_rows, value)
        return value

    new_state = []
    for op, weights, cache in zip(operators, params, state, strict=True):
        by_rows = wire.by_rows and op.row_parallel
        inputs = {role(tensor.name): fetch(tensor.name, by_rows) for tensor in op.inputs}
        outputs, cache = call(op, inputs, cache, weights, own if by_rows else shared)
        new_state.append(cache)
        for tensor in op.outputs:
            values[tensor.name] = (by_rows, outputs[role(tensor.name)])
    results = tuple(wire.leave(tensor, fetch(tensor.name, wire.by_rows)) for tensor in writes)
    return results, tuple(new_state)


def run_embed(
    op: OperatorSpec,
    config: ModelConfig,
    parallelism: Parallelism,
    shape: StageShape,
    ids: Array,
    params: dict[str, Array],
) -> Array:
    """Token ids ``[b]`` or ``[b, t]`` in wire form to ``x`` in wire form, on one device."""
    wire = Wire(parallelism)
    step = make_step(None, shape, parallelism, by_rows=False)
    if wire.by_rows:
        ids = gather_rows(ids)
    ids = ids.reshape(ids.shape[0], shape.tokens)
    outputs, _ = build_operator(op, config, params)({"ids": ids}, {}, step)
    x = outputs["x"]
    if wire.by_rows:
        x = share_rows(x, parallelism.tensor_parallel)
    return wire.leave(op.outputs[0], x)


def run_head(
    op: OperatorSpec,
    config: ModelConfig,
    parallelism: Parallelism,
    shape: StageShape,
    x: Array,
    control: Array | None,
    params: dict[str, Array],
) -> Array:
    """``x`` in wire form to the next token's logits ``[b, vocab]`` of the replica's rows.

    In prefill only the last real token of each row is looked at, which ``control`` tells.
    """
    wire = Wire(parallelism)
    step = make_step(control, shape, parallelism, by_rows=False)
    x = wire.enter(op.inputs[0], x)
    if wire.by_rows:
        x = gather_rows(x)
    if shape.tokens > 1:
        last = jnp.maximum(step.lengths - 1, 0)
        x = jnp.take_along_axis(x, last[:, None, None], axis=1)
    outputs, _ = build_operator(op, config, params)({"x": x}, {}, step)
    return outputs["logits"][:, 0]


def run_sample(
    parallelism: Parallelism,
    logits: Array,
    drawing: tuple[Array, RowSampling] | None,
) -> tuple[Array, Array]:
    """Logits to ids and their log-probabilities in wire form.

    Greedy without ``drawing``, which is the control data and how each row draws.
    """
    if drawing is None:
        chosen = greedy(logits)
    else:
        columns, sampling = drawing
        control = Control.of(columns)
        chosen = sample(logits, sampling, control.starts + control.lengths)
    if parallelism.attention_data_parallel > 1:
        ids, log_probabilities = (share_rows(v, parallelism.tensor_parallel) for v in chosen)
        return ids, log_probabilities
    return chosen


def signature(
    operators: tuple[OperatorSpec, ...],
    reads: tuple[TensorSpec, ...],
    writes: tuple[TensorSpec, ...],
) -> tuple[Any, ...]:
    """Equal for stages that one program can serve: layers are counted from the stage's first."""
    layers = [op.layer for op in operators if op.layer is not None]
    base = min(layers, default=0)

    def relative(tensor: TensorSpec) -> tuple[str, int]:
        name, _, layer = tensor.name.partition(".")
        return name, int(layer or 0) - base

    return (
        tuple(op.signature + ((op.layer or 0) - base,) for op in operators),
        tuple(relative(tensor) for tensor in reads),
        tuple(relative(tensor) for tensor in writes),
    )
