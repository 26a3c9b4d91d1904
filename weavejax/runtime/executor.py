"""Runs a plan inside one process: the host walks the schedule's actions and never waits.

Weights, caches, positions and token ids live on the devices. Between iterations the engine sets
which rows are active; inside one, nothing crosses between host and device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from weavejax.meshes.submesh import group_meshes
from weavejax.models.loading import Model
from weavejax.plan import Plan
from weavejax.runtime.batches import PrefillBatch, greedy_rows, idle_prefill
from weavejax.runtime.binding import bind_stages
from weavejax.runtime.capacity import check_capacity
from weavejax.runtime.cells import plan_cells
from weavejax.runtime.memory import Weights, live_bytes, load_weights, make_caches
from weavejax.runtime.programs import IDS, shared_programs
from weavejax.runtime.sampling import RowSampling
from weavejax.runtime.sharding import row_spec, wire_spec
from weavejax.runtime.stage import StageShape
from weavejax.runtime.stage_programs import Progress, StagePrograms
from weavejax.runtime.transport import InProcessTransport, Transport
from weavejax.schedule import Receive, Run, build_schedule

if TYPE_CHECKING:
    from jaxlib._jax import Device

Array = jax.Array
Control = dict[str, Array]
Held = dict[str, Array]
"""Tensors one group holds for one microbatch, by name."""


class Executor:
    """Weights, caches and compiled programs of one plan on one process's devices."""

    def __init__(
        self,
        model: Model,
        plan: Plan,
        *,
        devices: Sequence[Device] | None = None,
        oversubscribe: bool = False,
        dtype: Any = None,
        chunks: Sequence[int] = (16, 128),
        transport: Transport | None = None,
        progress: Progress = lambda what, done, total: None,
    ):
        self.plan = plan
        self.schedule = build_schedule(plan, model.config)
        self.meshes = group_meshes(plan, devices, oversubscribe=oversubscribe)
        self.cells = plan_cells(plan)
        platform = self.meshes[0].devices.flat[0].platform
        self.dtype = dtype or ("float32" if platform == "cpu" else "bfloat16")
        # Virtual CPU devices share one thread pool. A collective holds a thread until every rank
        # has come, so that many queued programs with collectives can use up the pool and hang.
        self._lockstep = platform == "cpu" and any(g.tensor_parallel > 1 for g in plan.groups)
        self.stages = bind_stages(plan, model.config, self.schedule)
        check_capacity(plan, model.config, self.stages, self.meshes, self.dtype)
        self.programs = shared_programs(
            model.config, plan.workload.context, jnp.dtype(self.dtype).name
        )
        self.stage_programs = StagePrograms(
            plan, self.stages, self.meshes, self.cells, self.programs, chunks
        )
        self.transport = transport or InProcessTransport()
        self._wires = {
            (group, tensor): NamedSharding(mesh, wire_spec(tensor, plan.groups[group].parallelism))
            for group, mesh in enumerate(self.meshes)
            for tensors in (*self.schedule.interfaces, (IDS,))
            for tensor in tensors
        }
        self.weights = self._load(model, progress)
        self._stage_weights = [
            tuple(self.weights[stage.owner][op.index] for op in stage.operators)
            for stage in self.stages
        ]
        self._allocate()
        self._warm_up(progress)

    # -- setup ---------------------------------------------------------------------------------

    def _load(self, model: Model, progress: Progress) -> list[Weights]:
        owned: list[set[int]] = [set() for _ in self.plan.groups]
        for stage in self.stages:
            ops = (stage.embed, *stage.operators, stage.head)
            owned[stage.owner] |= {op.index for op in ops if op is not None}
        total, count = sum(map(len, owned)), 0

        def tick() -> None:
            nonlocal count
            count += 1
            progress("loading weights", count, total)

        return [
            load_weights(model, group, mesh, indices, self.dtype, tick)
            for group, mesh, indices in zip(self.plan.groups, self.meshes, owned, strict=True)
        ]

    def _allocate(self) -> None:
        rows, context = self.plan.microbatch_rows, self.plan.workload.context
        microbatches = range(self.plan.microbatches)
        self.caches: dict[tuple[int, int], tuple[dict[str, Array], ...]] = {}
        for stage in self.stages:
            group, mesh = self.plan.groups[stage.owner], self.meshes[stage.owner]
            for microbatch in microbatches:
                self.caches[stage.index, microbatch] = tuple(
                    make_caches(op, group, mesh, rows, context, self.dtype)
                    for op in stage.operators
                )
        idle = np.zeros(rows, np.int32)
        self.ids = [self._put(self.stages[0].owner, idle, wire=True) for _ in microbatches]
        self.control: list[list[Control]] = [[] for _ in microbatches]
        self.sampling = [greedy_rows(rows) for _ in microbatches]
        for microbatch in microbatches:
            self.set_rows(microbatch, idle, idle, greedy_rows(rows))

    def _warm_up(self, progress: Progress) -> None:
        """Compile every program, then run each kind of pass once on idle rows."""
        self.stage_programs.compile(progress)
        for microbatch in range(self.plan.microbatches):
            for chunk in self.stage_programs.chunks:
                self.prefill(idle_prefill(microbatch, self.cells.count, chunk), sample=True)
        self.decode({microbatch: 1 for microbatch in range(self.plan.microbatches)})
        jax.block_until_ready((self.ids, list(self.caches.values())))

    def live_bytes(self) -> dict[Any, int]:
        """Bytes of weights and caches on every device."""
        return live_bytes([self.weights, list(self.caches.values())])

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
            {"starts": self._put(group, starts), "lengths": self._put(group, lengths)}
            for group in range(len(self.meshes))
        ]
        last = self.stages[-1].owner
        self.sampling[microbatch] = RowSampling(*(self._put(last, field) for field in sampling))

    def prefill(
        self, batch: PrefillBatch, *, sample: bool | None = None
    ) -> tuple[Array, Array] | None:
        """Run one chunk of prompts through the same stages.

        Args:
            batch: the rows.
            sample: sample each row's next token; by default when any row's prompt is done.

        Returns:
            First tokens and their log-probabilities ``[cells]``, still being computed, when
            sampled. The tokens of done rows are also the input of their next iteration.
        """
        sample = bool(batch.done.any()) if sample is None else sample
        shape = self.stage_programs.shape(batch.tokens.shape[1], batch.prefix, prefill=True)
        controls = [
            {
                name: self._put(group, getattr(batch, name))
                for name in ("starts", "lengths", "slots")
            }
            for group in range(len(self.meshes))
        ]
        first, last = self.stages[0].owner, self.stages[-1].owner
        ids = self._put(first, batch.tokens, wire=True)
        held = self._walk({batch.microbatch: (shape, controls, ids)})[batch.microbatch]
        if not sample:
            return None
        sampling = RowSampling(*(self._put(last, field) for field in batch.sampling))
        result = self._head(shape, controls[last], held, sampling)
        (new,) = self.transport.move([result[0]], [self._wires[first, IDS]])
        merge = self.stage_programs.merge(self.stages[0], shape)
        slots, done = (self._put(first, a, wire=True) for a in (batch.slots, batch.done))
        self.ids[batch.microbatch] = merge(self.ids[batch.microbatch], new, slots, done)
        return result

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
        work = {
            m: (self.stage_programs.shape(1, prefix, prefill=False), self.control[m], self.ids[m])
            for m, prefix in prefixes.items()
        }
        results: dict[int, tuple[Array, Array]] = {}
        first, last = self.stages[0].owner, self.stages[-1].owner

        def finish(m: int, held: Held) -> None:
            shape, controls, _ = work[m]
            results[m] = self._head(shape, controls[last], held, self.sampling[m])
            (self.ids[m],) = self.transport.move([results[m][0]], [self._wires[first, IDS]])

        self._walk(work, finish)
        for m in prefixes:
            for group, control in enumerate(self.control[m]):
                advance = self.stage_programs.advance(group)
                control["starts"] = advance(control["starts"], control["lengths"])
        return results

    def _walk(
        self,
        work: dict[int, tuple[StageShape, list[Control], Array]],
        finish: Callable[[int, Held], None] = lambda microbatch, held: None,
    ) -> dict[int, Held]:
        """Execute the schedule's actions for the microbatches of ``work``, in its order.

        The ring's last boundary is left to ``finish``, called when a microbatch's last stage has
        run. Returns what the last group holds.
        """
        held: dict[tuple[int, int], Held] = {
            (group, m): {} for group in range(len(self.meshes)) for m in work
        }
        flying: dict[tuple[int, int], Held] = {}
        last = len(self.stages) - 1
        for m, (_, _, ids) in work.items():
            held[self.stages[0].owner, m]["ids"] = ids
        for owner, action in self.schedule.actions:
            m = action.microbatch
            if m not in work:
                continue
            if isinstance(action, Run):
                shape, controls, _ = work[m]
                self._run(action.stage, m, shape, controls[owner], held[owner, m])
                if action.stage == last:
                    finish(m, held[owner, m])
            elif action.boundary == last:
                continue
            elif isinstance(action, Receive):
                held[owner, m].update(flying.pop((action.boundary, m)))
            else:
                flying[action.boundary, m] = self._send(action.boundary, held[owner, m])
        return {m: held[self.stages[-1].owner, m] for m in work}

    def _run(
        self, index: int, microbatch: int, shape: StageShape, control: Control, held: Held
    ) -> None:
        stage = self.stages[index]
        if stage.embed is not None:
            weights = self.weights[stage.owner][stage.embed.index]
            x = self.stage_programs.embed(stage, shape)(weights, held["ids"], control)
            held[stage.embed.outputs[0].name] = x
        tensors, self.caches[index, microbatch] = self.stage_programs.body(stage, shape)(
            self._stage_weights[index],
            self.caches[index, microbatch],
            tuple(held[tensor.name] for tensor in stage.reads),
            control,
        )
        if self._lockstep:
            jax.block_until_ready(tensors)
        for tensor, value in zip(stage.writes, tensors, strict=True):
            held[tensor.name] = value
        if index + 1 < len(self.stages) and self.stages[index + 1].owner == stage.owner:
            _forget(stage.forgets, held)

    def _head(
        self, shape: StageShape, control: Control, held: Held, sampling: RowSampling
    ) -> tuple[Array, Array]:
        stage = self.stages[-1]
        assert stage.head is not None
        weights = self.weights[stage.owner][stage.head.index]
        x = held[stage.head.inputs[0].name]
        result = self.stage_programs.head(stage, shape)(weights, x, control, sampling)
        return jax.block_until_ready(result) if self._lockstep else result

    def _send(self, boundary: int, held: Held) -> Held:
        tensors = self.schedule.interfaces[boundary]
        to = self.stages[boundary + 1].owner
        moved = self.transport.move(
            [held[tensor.name] for tensor in tensors],
            [self._wires[to, tensor] for tensor in tensors],
        )
        _forget(self.stages[boundary].forgets, held)
        return {tensor.name: value for tensor, value in zip(tensors, moved, strict=True)}

    def _put(self, group: int, value: Any, *, wire: bool = False) -> Array:
        parallelism = self.plan.groups[group].parallelism
        spec = wire_spec(IDS, parallelism) if wire else row_spec(parallelism)
        return jax.device_put(value, NamedSharding(self.meshes[group], spec))


def _forget(names: tuple[str, ...], held: Held) -> None:
    for name in names:
        held.pop(name, None)
