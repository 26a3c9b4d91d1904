"""Compiled programs of a model, made once and found again by what they compute.

A program takes and gives flat lists of arrays, ``program(*a, *b) -> [*c, *d]``: a call costs the
host a third less than one with nested arguments, and there is one call per stage.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from weavejax.models.config import ModelConfig
from weavejax.models.specs import OperatorSpec, TensorSpec
from weavejax.plan import Parallelism
from weavejax.runtime.sampling import RowSampling
from weavejax.runtime.sharding import (
    param_spec,
    row_spec,
    state_dtype,
    state_shape,
    state_spec,
    wire_rows,
    wire_spec,
)
from weavejax.runtime.stage import (
    Control,
    StageShape,
    operator_caller,
    run_embed,
    run_head,
    run_operators,
    run_sample,
    signature,
)

Compiled = Callable[..., Any]
IDS = TensorSpec("ids", (), ())


@lru_cache(maxsize=4)
def shared_programs(config: ModelConfig, context: int, dtype: str) -> Programs:
    """The programs of a model at a context, shared by every engine of this process.

    A second engine of the same model compiles only what its plan does differently.
    """
    return Programs(config, context, dtype)


class Programs:
    """Compiles stage programs ahead of time; thread-safe, each program once.

    ``compiled`` counts compilations: it must not grow after warm-up.
    """

    def __init__(self, config: ModelConfig, context: int, dtype: Any):
        self.config, self.context, self.dtype = config, context, jnp.dtype(dtype)
        self.compiled = 0
        self._call = operator_caller(config)
        self._programs: dict[Any, Compiled] = {}
        self._locks: dict[Any, threading.Lock] = {}
        self._guard = threading.Lock()

    def body(
        self,
        mesh: Mesh,
        parallelism: Parallelism,
        operators: tuple[OperatorSpec, ...],
        reads: tuple[TensorSpec, ...],
        writes: tuple[TensorSpec, ...],
        shape: StageShape,
    ) -> Compiled:
        """``(*state, *reads, control, *params) -> [*writes, *state]``; state is donated.

        There is no ``control`` where no operator reads positions.
        """
        key = ("body", mesh, parallelism, signature(operators, reads, writes), shape)
        return self._get(
            key, lambda: self._body(mesh, parallelism, operators, reads, writes, shape)
        )

    def _body(
        self,
        mesh: Mesh,
        parallelism: Parallelism,
        operators: tuple[OperatorSpec, ...],
        reads: tuple[TensorSpec, ...],
        writes: tuple[TensorSpec, ...],
        shape: StageShape,
    ) -> Compiled:
        rows = shape.cells * shape.cell_rows
        params = tuple(self._params(op, mesh, parallelism) for op in operators)
        cache = state_spec(parallelism)
        state = tuple(
            {
                state.name: _abstract(
                    mesh,
                    state_shape(state, op, rows, self.context, parallelism),
                    state_dtype(state, self.dtype, mesh),
                    cache,
                )
                for state in op.state
            }
            for op in operators
        )
        tensors = tuple(self._wire(tensor, mesh, parallelism, shape) for tensor in reads)
        outputs = tuple(wire_spec(tensor, parallelism) for tensor in writes)
        run = partial(run_operators, operators, self._call, parallelism, shape, reads, writes)
        reads_positions = any(op.reads_positions for op in operators)
        control = self._control(mesh, parallelism, shape) if reads_positions else None
        arguments = (state, tensors, control, params)
        states = jax.tree.map(lambda leaf: leaf.sharding.spec, state)
        return _compile(run, mesh, arguments, (outputs, states), donate=1)

    def embed(
        self, mesh: Mesh, parallelism: Parallelism, op: OperatorSpec, shape: StageShape
    ) -> Compiled:
        """``(ids, *params) -> [x]``."""

        def build() -> Compiled:
            run = partial(run_embed, op, self.config, parallelism, shape)
            ids_shape = (shape.rows, shape.tokens) if shape.prefill else (shape.rows,)
            ids = _abstract(mesh, ids_shape, jnp.int32, PartitionSpec(wire_rows(parallelism)))
            arguments = (ids, self._params(op, mesh, parallelism))
            return _compile(run, mesh, arguments, wire_spec(op.outputs[0], parallelism))

        return self._get(("embed", mesh, parallelism, shape), build)

    def head(
        self, mesh: Mesh, parallelism: Parallelism, op: OperatorSpec, shape: StageShape
    ) -> Compiled:
        """``(x, *params) -> [logits]``, float32 ``[rows, vocab]``.

        Prefill: ``(x, control, *params) -> [logits]``.
        """

        def build() -> Compiled:
            run = partial(run_head, op, self.config, parallelism, shape)
            x = self._wire(op.inputs[0], mesh, parallelism, shape)
            control = self._control(mesh, parallelism, shape) if shape.prefill else None
            arguments = (x, control, self._params(op, mesh, parallelism))
            return _compile(run, mesh, arguments, row_spec(parallelism))

        return self._get(("head", mesh, parallelism, shape), build)

    def sample(
        self, mesh: Mesh, parallelism: Parallelism, shape: StageShape, *, draws: bool
    ) -> Compiled:
        """``(logits, control, *sampling) -> [ids, log-probabilities]``.

        Without ``draws`` every row is greedy: ``(logits) -> [ids, log-probabilities]``.
        """

        def build() -> Compiled:
            spec = row_spec(parallelism)
            logits = _abstract(mesh, (rows, self.config.vocab_size), jnp.float32, spec)
            control = _abstract(mesh, (rows, columns), jnp.int32, spec)
            kinds = (jnp.float32, jnp.int32, jnp.float32, jnp.uint32)
            sampling = RowSampling(*(_abstract(mesh, (rows,), kind, spec) for kind in kinds))
            arguments = (logits, (control, sampling) if draws else None)
            ids = wire_spec(IDS, parallelism)
            return _compile(partial(run_sample, parallelism), mesh, arguments, (ids, ids))

        # Greedy rows of a prefill and of a decode are sampled alike.
        rows, columns = shape.rows, Control.columns(prefill=shape.prefill)
        return self._get(("sample", mesh, parallelism, rows, columns if draws else 0), build)

    def advance(self, mesh: Mesh, rows: int) -> Compiled:
        """``(control) -> [control]``: with the next iteration's positions."""

        def run(columns: jax.Array) -> jax.Array:
            starts, lengths, _ = Control.of(columns)
            return jnp.stack([starts + lengths, lengths], axis=1)

        def build() -> Compiled:
            spec = PartitionSpec("replica")
            control = _abstract(mesh, (rows, 2), jnp.int32, spec)
            return _compile(run, mesh, (control,), spec, donate=1)

        return self._get(("advance", mesh, rows), build)

    def merge(self, mesh: Mesh, parallelism: Parallelism, shape: StageShape) -> Compiled:
        """``(ids, new, slots, done) -> [ids]``: first tokens into a microbatch's ids."""

        def run(ids: jax.Array, new: jax.Array, slots: jax.Array, done: jax.Array) -> jax.Array:
            rows = jnp.arange(new.shape[0], dtype=jnp.int32) * shape.cell_rows + slots
            return ids.at[jnp.where(done, rows, ids.shape[0])].set(new, mode="drop")

        def build() -> Compiled:
            spec = wire_spec(IDS, parallelism)
            ids = _abstract(mesh, (shape.cells * shape.cell_rows,), jnp.int32, spec)
            new = _abstract(mesh, (shape.rows,), jnp.int32, spec)
            done = _abstract(mesh, (shape.rows,), jnp.bool_, spec)
            return _compile(run, mesh, (ids, new, new, done), spec)

        return self._get(("merge", mesh, parallelism, shape), build)

    def _get(self, key: Any, build: Callable[[], Compiled]) -> Compiled:
        found = self._programs.get(key)
        if found is not None:
            return found
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._programs:
                program = build()
                with self._guard:
                    self._programs[key] = program
                    self.compiled += 1
            return self._programs[key]

    def _params(
        self, op: OperatorSpec, mesh: Mesh, parallelism: Parallelism
    ) -> dict[str, jax.ShapeDtypeStruct]:
        return {
            param.name: _abstract(mesh, param.shape, self.dtype, param_spec(param, parallelism))
            for param in op.params
        }

    def _wire(
        self, tensor: TensorSpec, mesh: Mesh, parallelism: Parallelism, shape: StageShape
    ) -> jax.ShapeDtypeStruct:
        size = (shape.rows, shape.tokens, *tensor.shape)
        return _abstract(mesh, size, self.dtype, wire_spec(tensor, parallelism))

    def _control(
        self, mesh: Mesh, parallelism: Parallelism, shape: StageShape
    ) -> jax.ShapeDtypeStruct:
        size = (shape.rows, Control.columns(prefill=shape.prefill))
        return _abstract(mesh, size, jnp.int32, row_spec(parallelism))


def _abstract(
    mesh: Mesh, shape: Sequence[int], dtype: Any, spec: PartitionSpec
) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=NamedSharding(mesh, spec))


def _compile(
    run: Callable[..., Any],
    mesh: Mesh,
    arguments: tuple[Any, ...],
    out_specs: Any,
    donate: int = 0,
) -> Compiled:
    """Ahead-of-time compilation of ``run`` over ``mesh``; shardings come from the arguments.

    The first ``donate`` arguments give their buffers to the results.
    """
    leaves, tree = jax.tree.flatten(arguments)
    donated = len(jax.tree.leaves(arguments[:donate]))

    def flat(*leaves: jax.Array) -> list[jax.Array]:
        return jax.tree.leaves(run(*jax.tree.unflatten(tree, leaves)))

    mapped = jax.shard_map(
        flat,
        mesh=mesh,
        in_specs=tuple(leaf.sharding.spec for leaf in leaves),
        out_specs=jax.tree.leaves(out_specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)),
        check_vma=False,
    )
    return jax.jit(mapped, donate_argnums=tuple(range(donated))).lower(*leaves).compile()
