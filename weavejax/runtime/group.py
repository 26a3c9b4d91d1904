"""One device group's side of a plan: weights, caches, rows, and its stages as bound calls.

A bound call has everything it needs at hand: program, weights, where its caches and tensors are
kept. Executing an iteration is calling a list of them in the schedule's order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from weavejax.models.loading import Model
from weavejax.models.specs import TensorSpec
from weavejax.plan import DeviceGroup
from weavejax.runtime.batches import PrefillBatch, greedy_rows
from weavejax.runtime.binding import StageBinding
from weavejax.runtime.cells import Cells
from weavejax.runtime.memory import load_weights, make_caches
from weavejax.runtime.programs import IDS, Programs
from weavejax.runtime.sampling import RowSampling
from weavejax.runtime.sharding import row_spec, wire_spec
from weavejax.runtime.stage import StageShape
from weavejax.runtime.stage_programs import StagePrograms

Array = jax.Array
Call = Callable[[], Sequence[Array]]
"""Submits work and returns what it will produce."""


class GroupRunner:
    """A device group, or one replica of it, in this process.

    Args:
        group: what the runner is: its parallelism, and as many replicas as it holds itself.
        stages: the bindings of this group.
        mesh: its devices.
        cells: rows of a microbatch that it holds.
        programs: where programs come from, and the context and dtype.
        chunks: prefill chunks.
    """

    def __init__(
        self,
        group: DeviceGroup,
        stages: Sequence[StageBinding],
        mesh: Mesh,
        cells: Cells,
        programs: Programs,
        chunks: Sequence[int],
    ):
        self.group, self.stages, self.mesh, self.cells = group, stages, mesh, cells
        self.programs = StagePrograms(stages, mesh, group.parallelism, cells, programs, chunks)
        self.dtype, self.context = programs.dtype, programs.context
        # Virtual CPU devices share one thread pool. A collective holds a thread until every rank
        # has come, so that many queued programs with collectives can use up the pool and hang.
        self._lockstep = mesh.devices.flat[0].platform == "cpu" and group.tensor_parallel > 1
        self.held: list[dict[str, Array]] = [{} for _ in range(cells.microbatches)]
        """Tensors of each microbatch in decode, by name; ``ids`` are the next input."""
        self.chunk_held: dict[str, Array] = {}
        """Tensors of the prefill pass."""
        self._chunk_control: list[Array] = []  # one array, once a chunk has come
        self._chunk_sampling: list[Array] = []

    @property
    def operators(self) -> set[int]:
        """Indices of the operators whose weights it needs."""
        return set().union(*(stage.indices for stage in self.stages))

    def load(self, model: Model, tick: Callable[[], None] = lambda: None) -> None:
        """Read the weights of its operators and make its caches; every row is idle."""
        self.weights = load_weights(model, self.group, self.mesh, self.operators, self.dtype, tick)
        self.allocate()

    def allocate(self) -> None:
        """Make the caches; every row is idle."""
        rows, microbatches = self.cells.microbatch_rows, range(self.cells.microbatches)
        self.caches: dict[tuple[int, int], list[Array]] = {}
        """(first occurrence of a binding, microbatch) to its cache arrays."""
        for stage in self.stages:
            for microbatch in microbatches:
                self.caches[stage.index, microbatch] = jax.tree.leaves(
                    [
                        make_caches(op, self.group, self.mesh, rows, self.context, self.dtype)
                        for op in stage.operators
                    ]
                )
        self._control: list[list[Array]] = [[] for _ in microbatches]
        self._sampling: list[list[Array]] = [[] for _ in microbatches]
        idle = np.zeros(rows, np.int32)
        for microbatch in microbatches:
            self.set_rows(microbatch, idle, idle, greedy_rows(rows))
            if self.stages[0].embed is not None:
                self.held[microbatch]["ids"] = self.put(idle, wire=True)

    def put(self, value: Any, *, wire: bool = False) -> Array:
        """Rows of the host onto the group's devices."""
        parallelism = self.group.parallelism
        spec = wire_spec(IDS, parallelism) if wire else row_spec(parallelism)
        return jax.device_put(value, NamedSharding(self.mesh, spec))

    def wire(self, tensor: TensorSpec, shape: StageShape) -> jax.ShapeDtypeStruct:
        """How the group holds a tensor that crosses a boundary."""
        sharding = NamedSharding(self.mesh, wire_spec(tensor, self.group.parallelism))
        if tensor.name == "ids":
            return jax.ShapeDtypeStruct((shape.rows,), np.int32, sharding=sharding)
        size = (shape.rows, shape.tokens, *tensor.shape)
        return jax.ShapeDtypeStruct(size, self.dtype, sharding=sharding)

    # -- rows ----------------------------------------------------------------------------------

    def set_rows(
        self, microbatch: int, starts: np.ndarray, lengths: np.ndarray, sampling: RowSampling
    ) -> None:
        """Positions, activity and sampling of a microbatch's rows, before an iteration."""
        self._control[microbatch][:] = [self._place_control(starts, lengths)]
        if self.stages[-1].head is not None:
            self._sampling[microbatch][:] = self._place_sampling(sampling)

    def set_chunk(self, batch: PrefillBatch) -> None:
        """Rows, token ids and sampling of the next prefill pass."""
        self._chunk_control[:] = [self._place_control(batch.starts, batch.lengths, batch.slots)]
        if self.stages[0].embed is not None:
            self.chunk_held["ids"] = self.put(batch.tokens, wire=True)
        if self.stages[-1].head is not None:
            self._chunk_sampling[:] = self._place_sampling(batch.sampling)

    def _place_control(self, *columns: np.ndarray) -> Array:
        return self.put(np.stack(columns, axis=1, dtype=np.int32))

    def _place_sampling(self, sampling: RowSampling) -> list[Array]:
        """Nothing where every row is greedy."""
        if not np.any(sampling.temperature > 0):
            return []
        return [self.put(field) for field in sampling]

    def advance(self, microbatch: int) -> None:
        """Move the positions of active rows on, after an iteration."""
        control = self._control[microbatch]
        control[:] = self.programs.advance()(*control)

    def merge_ids(self, batch: PrefillBatch, shape: StageShape, new: Array) -> None:
        """The first tokens of prompts that end in this chunk become their rows' next input."""
        held = self.held[batch.microbatch]
        slots, done = self.put(batch.slots, wire=True), self.put(batch.done, wire=True)
        [held["ids"]] = self.programs.merge(shape)(held["ids"], new, slots, done)

    # -- bound calls ---------------------------------------------------------------------------

    def tensors(self, microbatch: int, shape: StageShape) -> dict[str, Array]:
        """Where a pass of this shape keeps its tensors."""
        return self.chunk_held if shape.prefill else self.held[microbatch]

    def bind_run(self, stage: StageBinding, microbatch: int, shape: StageShape) -> Call:
        """The layer operators of a stage, after ``embed`` where it has one."""
        body = self.programs.body(stage, shape)
        held = self.tensors(microbatch, shape)
        control = self._rows(microbatch, shape) if stage.reads_positions else []
        params = jax.tree.leaves([self.weights[op.index] for op in stage.operators])
        reads = [tensor.name for tensor in stage.reads]
        writes = [tensor.name for tensor in stage.writes]
        count, caches, key = len(writes), self.caches, (stage.index, microbatch)
        lockstep = self._lockstep

        def run() -> Sequence[Array]:
            results = body(*caches[key], *[held[name] for name in reads], *control, *params)
            caches[key] = results[count:]
            if lockstep:
                jax.block_until_ready(results)
            for name, value in zip(writes, results):  # noqa: B905  the caches follow
                held[name] = value
            return results

        if stage.embed is None:
            return run
        embed = self.programs.embed(stage, shape)
        embed_params = jax.tree.leaves(self.weights[stage.embed.index])
        x = stage.embed.outputs[0].name

        def embed_and_run() -> Sequence[Array]:
            [held[x]] = embed(held["ids"], *embed_params)
            return run()

        return embed_and_run

    def bind_head(self, microbatch: int, shape: StageShape) -> Call:
        """The last stage's sampling: ids and log-probabilities of the rows."""
        stage = self.stages[-1]
        assert stage.head is not None
        head = self.programs.head(stage, shape)
        draw = self.programs.sample(shape, draws=True)
        greedy = self.programs.sample(shape, draws=False)
        held, control = self.tensors(microbatch, shape), self._rows(microbatch, shape)
        looked_at = control if shape.prefill else []
        sampling = self._chunk_sampling if shape.prefill else self._sampling[microbatch]
        params = jax.tree.leaves(self.weights[stage.head.index])
        x, lockstep = stage.head.inputs[0].name, self._lockstep

        def run() -> Sequence[Array]:
            [logits] = head(held[x], *looked_at, *params)
            result = draw(logits, *control, *sampling) if sampling else greedy(logits)
            return jax.block_until_ready(result) if lockstep else result

        return run

    def _rows(self, microbatch: int, shape: StageShape) -> list[Array]:
        return self._chunk_control if shape.prefill else self._control[microbatch]
