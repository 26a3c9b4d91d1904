"""Runs a plan inside one process: the host walks the schedule's actions and never waits.

Weights, caches, positions and token ids live on the devices. Between iterations the engine sets
which rows are active; inside one, nothing crosses between host and device.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from weavejax.meshes.submesh import group_meshes
from weavejax.models.loading import Model
from weavejax.plan import Plan
from weavejax.runtime.binding import StageBinding, bind_stages
from weavejax.runtime.cells import plan_cells
from weavejax.runtime.memory import load_weights, make_caches
from weavejax.runtime.programs import IDS, Programs
from weavejax.runtime.sampling import RowSampling
from weavejax.runtime.sharding import row_spec, wire_spec
from weavejax.runtime.stage import StageShape
from weavejax.runtime.transport import InProcessTransport, Transport
from weavejax.schedule import Receive, Run, build_schedule

Array = jax.Array
Progress = Callable[[str, int, int], None]
"""Called with (what, done, total)."""


@dataclass(frozen=True)
class PrefillBatch:
    """One prefill pass over a microbatch: at most one row per cell, host arrays ``[cells]``."""

    microbatch: int
    tokens: np.ndarray
    """``[cells, chunk]`` int32, padded."""
    starts: np.ndarray
    lengths: np.ndarray
    """0 for cells that take no part."""
    slots: np.ndarray
    """Row inside the cell."""
    done: np.ndarray
    """Rows whose prompt ends in this chunk: their first token is sampled."""
    sampling: RowSampling


class Executor:
    """Weights, caches and compiled programs of one plan on one process's devices."""

    def __init__(
        self,
        model: Model,
        plan: Plan,
        *,
        devices: Sequence[jax.Device] | None = None,
        oversubscribe: bool = False,
        dtype: Any = None,
        chunks: Sequence[int] = (16, 128),
        transport: Transport | None = None,
        progress: Progress = lambda what, done, total: None,
    ):
        self.plan, self.config = plan, model.config
        self.schedule = build_schedule(plan, model.config)
        self.meshes = group_meshes(plan, devices, oversubscribe=oversubscribe)
        self.cells = plan_cells(plan)
        platform = self.meshes[0].devices.flat[0].platform
        self.dtype = dtype or ("float32" if platform == "cpu" else "bfloat16")
        self.stages = bind_stages(plan, model.config, self.schedule)
        self.chunks = tuple(sorted({min(chunk, plan.workload.context) for chunk in chunks}))
        self.programs = Programs(model.config, plan.workload.context, self.dtype)
        self.transport = transport or InProcessTransport()
        self.prefixes = prefix_buckets(plan.workload.context)
        self._wires = {
            (group, tensor): NamedSharding(mesh, wire_spec(tensor, plan.groups[group].parallelism))
            for group, mesh in enumerate(self.meshes)
            for tensors in (*self.schedule.interfaces, (IDS,))
            for tensor in tensors
        }
        self._load(model, progress)
        self._allocate()
        self._warm_up(progress)

    # -- setup ---------------------------------------------------------------------------------

    def _load(self, model: Model, progress: Progress) -> None:
        owned: list[set[int]] = [set() for _ in self.plan.groups]
        for stage in self.stages:
            ops = (stage.embed, *stage.operators, stage.head)
            owned[stage.owner] |= {op.index for op in ops if op is not None}
        total, count = sum(map(len, owned)), 0

        def tick() -> None:
            nonlocal count
            count += 1
            progress("loading weights", count, total)

        self.weights = [
            load_weights(model, group, mesh, indices, self.dtype, tick)
            for group, mesh, indices in zip(self.plan.groups, self.meshes, owned, strict=True)
        ]

    def _allocate(self) -> None:
        rows, context = self.plan.microbatch_rows, self.plan.workload.context
        self.caches: dict[tuple[int, int], tuple[dict[str, Array], ...]] = {}
        for stage in self.stages:
            group, mesh = self.plan.groups[stage.owner], self.meshes[stage.owner]
            for microbatch in range(self.plan.microbatches):
                self.caches[stage.index, microbatch] = tuple(
                    make_caches(op, group, mesh, rows, context, self.dtype)
                    for op in stage.operators
                )
        idle = np.zeros(rows, np.int32)
        microbatches = range(self.plan.microbatches)
        self.ids = [self._put(self.stages[0].owner, idle, wire=True) for _ in microbatches]
        self.control: list[list[dict[str, Array]]] = []
        self.sampling: list[RowSampling] = []
        for microbatch in microbatches:
            self.control.append([])
            self.sampling.append(greedy_rows(rows))
            self.set_rows(microbatch, idle, idle, greedy_rows(rows))

    def _warm_up(self, progress: Progress) -> None:
        """Compile every program, in parallel, then run each kind of pass once on idle rows."""
        jobs: list[Callable[[], Any]] = []
        for shape in self._shapes():
            for stage in self.stages:
                jobs += self._stage_programs(stage, shape)
        for mesh in self.meshes:
            jobs.append(lambda mesh=mesh: self.programs.advance(mesh, self.plan.microbatch_rows))
        count = 0
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            for future in [pool.submit(job) for job in jobs]:
                future.result()
                count += 1
                progress("compiling stages", count, len(jobs))
        for microbatch in range(self.plan.microbatches):
            for chunk in self.chunks:
                self.prefill(self._idle_batch(microbatch, chunk), max(self.chunks))
        self.decode({microbatch: 1 for microbatch in range(self.plan.microbatches)})
        jax.block_until_ready((self.ids, list(self.caches.values())))

    def _shapes(self) -> list[StageShape]:
        shapes = [self._shape(1, prefix) for prefix in self.prefixes]
        shapes += [
            self._shape(chunk, prefix, prefill=True)
            for chunk in self.chunks
            for prefix in self.prefixes
            if prefix >= min(chunk, self.plan.workload.context)
        ]
        return shapes

    def _shape(self, tokens: int, prefix: int, *, prefill: bool = False) -> StageShape:
        return StageShape(
            rows=self.cells.count if prefill else self.plan.microbatch_rows,
            tokens=tokens,
            prefix=prefix,
            prefill=prefill,
            cells=self.cells.count,
            cell_rows=self.cells.rows,
        )

    def _idle_batch(self, microbatch: int, chunk: int) -> PrefillBatch:
        zeros = np.zeros(self.cells.count, np.int32)
        return PrefillBatch(
            microbatch=microbatch,
            tokens=np.zeros((self.cells.count, chunk), np.int32),
            starts=zeros,
            lengths=zeros,
            slots=zeros,
            done=zeros.astype(bool),
            sampling=greedy_rows(self.cells.count),
        )

    # -- between iterations --------------------------------------------------------------------

    def set_rows(
        self, microbatch: int, starts: np.ndarray, lengths: np.ndarray, sampling: RowSampling
    ) -> None:
        """Set position, activity and sampling of a microbatch's rows before the next iteration.

        Args:
            microbatch: which.
            starts: ``[rows]`` int32, the position of each row's next input token.
            lengths: ``[rows]`` int32, 1 for active rows and 0 for idle ones.
            sampling: ``[rows]`` each.
        """
        self.control[microbatch] = [
            {
                "starts": self._put(group, starts.astype(np.int32)),
                "lengths": self._put(group, lengths.astype(np.int32)),
            }
            for group in range(len(self.meshes))
        ]
        last = self.stages[-1].owner
        self.sampling[microbatch] = RowSampling(*(self._put(last, field) for field in sampling))

    def prefill(self, batch: PrefillBatch, prefix: int) -> tuple[Array, Array] | None:
        """Run one chunk of prompts through the same stages.

        Args:
            batch: the rows.
            prefix: at least the last position of any row, plus one.

        Returns:
            First tokens and their log-probabilities ``[cells]`` on the device, where any row's
            prompt ends in this chunk; else ``None``.
        """
        microbatch = batch.microbatch
        shape = self._shape(batch.tokens.shape[1], self._bucket(prefix), prefill=True)
        controls = [
            {
                name: self._put(group, getattr(batch, name).astype(np.int32))
                for name in ("starts", "lengths", "slots")
            }
            for group in range(len(self.meshes))
        ]
        values: list[dict[str, Array]] = [{} for _ in self.meshes]
        values[self.stages[0].owner]["ids"] = self._put(
            self.stages[0].owner, batch.tokens.astype(np.int32), wire=True
        )
        flying: dict[int, dict[str, Array]] = {}
        last = len(self.stages) - 1
        result: tuple[Array, Array] | None = None
        for owner, action in self.schedule.actions:
            if action.microbatch != microbatch:
                continue
            match action:
                case Receive(boundary, _):
                    if boundary != last:
                        values[owner].update(flying.pop(boundary))
                case Run(index, _):
                    self._run_body(index, microbatch, shape, controls[owner], values[owner])
                    if index == last and batch.done.any():
                        sampling = RowSampling(*(self._put(owner, v) for v in batch.sampling))
                        result = self._run_head(shape, controls[owner], values[owner], sampling)
                case _:
                    if action.boundary != last:
                        flying[action.boundary] = self._send(action.boundary, values[owner])
        if result is not None:
            self._merge(batch, shape, result[0])
        return result

    def _merge(self, batch: PrefillBatch, shape: StageShape, new: Array) -> None:
        first = self.stages[0].owner
        (new,) = self.transport.move([new], [self._wires[first, IDS]])
        merge = self.programs.merge(
            self.meshes[first], self.plan.groups[first].parallelism, _ends(shape)
        )
        slots = self._put(first, batch.slots.astype(np.int32), wire=True)
        done = self._put(first, batch.done, wire=True)
        self.ids[batch.microbatch] = merge(self.ids[batch.microbatch], new, slots, done)

    # -- one iteration -------------------------------------------------------------------------

    def decode(self, prefixes: dict[int, int]) -> dict[int, tuple[Array, Array]]:
        """Run one decode iteration without waiting for anything.

        Args:
            prefixes: for each microbatch that has active rows, at least the last active position
                plus one. Other microbatches are left out of the iteration.

        Returns:
            The new token ids and log-probabilities ``[rows]`` of each microbatch, still being
            computed.
        """
        shapes = {m: self._shape(1, self._bucket(prefix)) for m, prefix in prefixes.items()}
        values: dict[tuple[int, int], dict[str, Array]] = {
            (group, m): {} for group in range(len(self.meshes)) for m in prefixes
        }
        flying: dict[tuple[int, int], dict[str, Array]] = {}
        results: dict[int, tuple[Array, Array]] = {}
        first, last = self.stages[0].owner, len(self.stages) - 1
        for m in prefixes:
            values[first, m]["ids"] = self.ids[m]
        for owner, action in self.schedule.actions:
            m = action.microbatch
            if m not in prefixes:
                continue
            held = values[owner, m]
            match action:
                case Receive(boundary, _):
                    if boundary != last:
                        held.update(flying.pop((boundary, m)))
                case Run(index, _):
                    control = self.control[m][owner]
                    self._run_body(index, m, shapes[m], control, held)
                    if index == last:
                        results[m] = self._run_head(shapes[m], control, held, self.sampling[m])
                        self.ids[m] = held["ids"] = results[m][0]
                case _:
                    sent = self._send(action.boundary, held)
                    if action.boundary == last:
                        self.ids[m] = sent["ids"]
                    else:
                        flying[action.boundary, m] = sent
        for m in prefixes:
            for control, mesh in zip(self.control[m], self.meshes, strict=True):
                advance = self.programs.advance(mesh, self.plan.microbatch_rows)
                control["starts"] = advance(control["starts"], control["lengths"])
        return results

    def _run_body(
        self,
        index: int,
        microbatch: int,
        shape: StageShape,
        control: dict[str, Array],
        held: dict[str, Array],
    ) -> None:
        stage = self.stages[index]
        weights = self.weights[stage.owner]
        if stage.embed is not None:
            embed = self._embed(stage, shape)
            x = embed(weights[stage.embed.index], held["ids"], control)
            held[stage.embed.outputs[0].name] = x
        state = self.caches[index, microbatch]
        tensors, self.caches[index, microbatch] = self._body(stage, shape)(
            tuple(weights[op.index] for op in stage.operators),
            state,
            tuple(held[tensor.name] for tensor in stage.reads),
            control,
        )
        for tensor, value in zip(stage.writes, tensors, strict=True):
            held[tensor.name] = value
        if index + 1 < len(self.stages) and self.stages[index + 1].owner == stage.owner:
            self._forget(index, held)

    def _run_head(
        self,
        shape: StageShape,
        control: dict[str, Array],
        held: dict[str, Array],
        sampling: RowSampling,
    ) -> tuple[Array, Array]:
        stage = self.stages[-1]
        assert stage.head is not None
        weights = self.weights[stage.owner][stage.head.index]
        x = held[stage.head.inputs[0].name]
        return self._head(stage, shape)(weights, x, control, sampling)

    def _send(self, boundary: int, held: dict[str, Array]) -> dict[str, Array]:
        tensors = self.schedule.interfaces[boundary]
        to = self.stages[(boundary + 1) % len(self.stages)].owner
        moved = self.transport.move(
            [held[tensor.name] for tensor in tensors],
            [self._wires[to, tensor] for tensor in tensors],
        )
        self._forget(boundary, held)
        return {tensor.name: value for tensor, value in zip(tensors, moved, strict=True)}

    def _forget(self, index: int, held: dict[str, Array]) -> None:
        for name in self.stages[index].forgets:
            held.pop(name, None)

    # -- programs ------------------------------------------------------------------------------

    def _stage_programs(self, stage: StageBinding, shape: StageShape) -> list[Callable[[], Any]]:
        jobs: list[Callable[[], Any]] = [lambda: self._body(stage, shape)]
        if stage.embed is not None:
            jobs.append(lambda: self._embed(stage, shape))
            if shape.prefill:
                group = self.plan.groups[stage.owner].parallelism
                mesh = self.meshes[stage.owner]
                jobs.append(lambda: self.programs.merge(mesh, group, _ends(shape)))
        if stage.head is not None:
            jobs.append(lambda: self._head(stage, shape))
        return jobs

    def _body(self, stage: StageBinding, shape: StageShape) -> Callable[..., Any]:
        if not stage.reads_context:
            shape = _without_prefix(shape)
        mesh, group = self.meshes[stage.owner], self.plan.groups[stage.owner]
        return self.programs.body(
            mesh, group.parallelism, stage.operators, stage.reads, stage.writes, shape
        )

    def _embed(self, stage: StageBinding, shape: StageShape) -> Callable[..., Any]:
        assert stage.embed is not None
        mesh, group = self.meshes[stage.owner], self.plan.groups[stage.owner]
        return self.programs.embed(mesh, group.parallelism, stage.embed, _without_prefix(shape))

    def _head(self, stage: StageBinding, shape: StageShape) -> Callable[..., Any]:
        assert stage.head is not None
        mesh, group = self.meshes[stage.owner], self.plan.groups[stage.owner]
        return self.programs.head(mesh, group.parallelism, stage.head, _without_prefix(shape))

    def _bucket(self, prefix: int) -> int:
        return next(size for size in self.prefixes if size >= prefix)

    def _put(self, group: int, value: np.ndarray, *, wire: bool = False) -> Array:
        parallelism = self.plan.groups[group].parallelism
        spec = wire_spec(IDS, parallelism) if wire else row_spec(parallelism)
        return jax.device_put(value, _sharding(self.meshes[group], spec))


def prefix_buckets(context: int, smallest: int = 128) -> tuple[int, ...]:
    """Prefix lengths attention is compiled for: doubling from ``smallest`` to the context.

    Examples:
        >>> prefix_buckets(1000)
        (128, 256, 512, 1000)
    """
    sizes = [context]
    size = smallest
    while size < context:
        sizes.append(size)
        size *= 2
    return tuple(sorted(sizes))


def greedy_rows(rows: int) -> RowSampling:
    """Host arrays that sample greedily."""
    return RowSampling(
        temperature=np.zeros(rows, np.float32),  # type: ignore[arg-type]
        top_k=np.zeros(rows, np.int32),  # type: ignore[arg-type]
        top_p=np.ones(rows, np.float32),  # type: ignore[arg-type]
        seed=np.zeros(rows, np.uint32),  # type: ignore[arg-type]
    )


def _sharding(mesh: Mesh, spec: PartitionSpec) -> NamedSharding:
    return NamedSharding(mesh, spec)


def _without_prefix(shape: StageShape) -> StageShape:
    return StageShape(**{**vars(shape), "prefix": 0})


def _ends(shape: StageShape) -> StageShape:
    """The part of a shape that merging first tokens depends on."""
    return StageShape(**{**vars(shape), "prefix": 0, "tokens": 1})
