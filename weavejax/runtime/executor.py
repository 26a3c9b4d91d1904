"""Runs a plan inside one process: the host calls the schedule's actions and never waits.

Weights, caches, positions and token ids live on the devices. Between iterations the engine sets
which rows are active; inside one, nothing crosses between host and device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from weavejax.meshes.submesh import group_meshes
from weavejax.models.loading import Model
from weavejax.models.specs import TensorSpec
from weavejax.plan import Plan
from weavejax.runtime.batches import PrefillBatch, idle_prefill
from weavejax.runtime.binding import StageBinding, bind_stages
from weavejax.runtime.capacity import check_capacity
from weavejax.runtime.cells import plan_cells
from weavejax.runtime.group import Array, Call, GroupRunner
from weavejax.runtime.memory import live_bytes
from weavejax.runtime.programs import IDS, shared_programs
from weavejax.runtime.sampling import RowSampling
from weavejax.runtime.stage import StageShape
from weavejax.runtime.stage_programs import Progress, compile_all
from weavejax.runtime.transport import InProcessTransport, Move, Transport
from weavejax.schedule import Action, Run, Send, build_schedule

if TYPE_CHECKING:
    from jaxlib._jax import Device

BoundAction = tuple[int, Action, Call]
"""(group, action, what does it)."""
Observer = Callable[[int, Action, Sequence[Array]], None]
"""Told of every action right after it was submitted: group, action, what it will produce."""
Work = tuple[tuple[int, StageShape], ...]
"""The microbatches of a pass and their shapes."""


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
        self.stages = bind_stages(plan, model.config, self.schedule)
        check_capacity(plan, model.config, self.stages, self.meshes, self.dtype)
        self.programs = shared_programs(
            model.config, plan.workload.context, jnp.dtype(self.dtype).name
        )
        self.groups = [
            GroupRunner(
                group,
                [stage for stage in self.stages if stage.owner == index],
                mesh,
                self.cells,
                self.programs,
                chunks,
            )
            for index, (group, mesh) in enumerate(zip(plan.groups, self.meshes, strict=True))
        ]
        self.chunks = self.groups[0].programs.chunks
        self.transport = transport or InProcessTransport()
        self.observer: Observer | None = None
        """Set between iterations to follow every action."""
        self._first = self.groups[self.stages[0].owner]
        self._last = self.groups[self.stages[-1].owner]
        self._results: dict[int, tuple[Array, Array]] = {}
        self._bound: dict[Work, list[BoundAction]] = {}
        self._endings: dict[tuple[int, StageShape], tuple[Call, Move]] = {}
        self._load(model, progress)
        self._warm_up(progress)

    # -- setup ---------------------------------------------------------------------------------

    def _load(self, model: Model, progress: Progress) -> None:
        total, count = sum(len(group.operators) for group in self.groups), 0

        def tick() -> None:
            nonlocal count
            count += 1
            progress("loading weights", count, total)

        for group in self.groups:
            group.load(model, tick)

    def _warm_up(self, progress: Progress) -> None:
        """Compile every program, then run each kind of pass once on idle rows."""
        compile_all([job for group in self.groups for job in group.programs.jobs()], progress)
        for microbatch in range(self.plan.microbatches):
            for chunk in self.chunks:
                self.prefill(idle_prefill(microbatch, self.cells.count, chunk), sample=True)
        self.decode({microbatch: 1 for microbatch in range(self.plan.microbatches)})
        self.wait()

    def recover(self, failure: BaseException) -> bool:
        """Nothing in one process fails by itself and could be started again."""
        return False

    def close(self) -> None:
        """Devices let go of their arrays with the last reference to this object."""

    def wait(self) -> None:
        """Until everything submitted has run."""
        jax.block_until_ready([[group.held, list(group.caches.values())] for group in self.groups])

    def live_bytes(self) -> dict[Any, int]:
        """Bytes of weights and caches on every device."""
        return live_bytes([[group.weights, list(group.caches.values())] for group in self.groups])

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
        for group in self.groups:
            group.set_rows(microbatch, starts, lengths, sampling)

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
        shape = self._first.programs.shape(batch.tokens.shape[1], batch.prefix, prefill=True)
        for group in self.groups:
            group.set_chunk(batch)
        self._execute(((batch.microbatch, shape),))
        if not sample:
            return None
        key = (batch.microbatch, shape)
        if key not in self._endings:
            self._endings[key] = self._last.bind_head(*key), self._ids_move(shape)
        head, move = self._endings[key]
        ids, logprobs = head()
        self._first.merge_ids(batch, shape, *move([ids]))
        return ids, logprobs

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
        shape = self._first.programs.shape
        self._execute(tuple((m, shape(1, prefixes[m], prefill=False)) for m in sorted(prefixes)))
        for group in self.groups:
            for microbatch in prefixes:
                group.advance(microbatch)
        return {microbatch: self._results.pop(microbatch) for microbatch in prefixes}

    def _execute(self, work: Work) -> None:
        bound = self._bound.get(work)
        if bound is None:
            bound = self._bound[work] = self._bind(work)
        if self.observer is None:
            for _, _, call in bound:
                call()
        else:
            for owner, action, call in bound:
                self.observer(owner, action, call())

    # -- binding -------------------------------------------------------------------------------

    def _bind(self, work: Work) -> list[BoundAction]:
        """The schedule's actions for the microbatches of ``work``, each as one call.

        In one process what is sent is received: a ``Receive`` has nothing left to do. Prefill
        leaves the last boundary to :meth:`prefill`, which samples only when a prompt ends.
        """
        shapes = dict(work)
        stages = {stage.index: stage for stage in self.stages}
        ends = {stage.last: stage for stage in self.stages}
        ring = len(self.schedule.occurrences) - 1
        bound: list[BoundAction] = []
        for owner, action in self.schedule.actions:
            shape = shapes.get(action.microbatch)
            if shape is None:
                continue
            if isinstance(action, Run) and action.stage in stages:
                stage = stages[action.stage]
                bound.append((owner, action, self._bind_run(stage, action.microbatch, shape)))
                if stage.head is not None and not shape.prefill:
                    bound += self._bind_ring(owner, ring, action.microbatch, shape)
            elif isinstance(action, Send) and action.boundary != ring:
                stage = ends[action.boundary]
                bound.append((owner, action, self._bind_send(stage, action.microbatch, shape)))
        return bound

    def _bind_run(self, stage: StageBinding, microbatch: int, shape: StageShape) -> Call:
        group = self.groups[stage.owner]
        run = group.bind_run(stage, microbatch, shape)
        sends = bool(self.schedule.interfaces[stage.last])
        if sends or stage.head is not None or not stage.forgets:
            return run
        held, forgets = group.tensors(microbatch, shape), stage.forgets

        def run_and_forget() -> Sequence[Array]:
            results = run()
            for name in forgets:
                held.pop(name, None)
            return results

        return run_and_forget

    def _bind_send(self, stage: StageBinding, microbatch: int, shape: StageShape) -> Call:
        tensors = self.schedule.interfaces[stage.last]
        source, to = self.groups[stage.owner], self.groups[self._owner_after(stage)]
        move = self._move(source, to, tensors, shape)
        names, forgets = [tensor.name for tensor in tensors], stage.forgets
        held, landing = source.tensors(microbatch, shape), to.tensors(microbatch, shape)

        def send() -> Sequence[Array]:
            moved = move([held[name] for name in names])
            for name in forgets:
                held.pop(name, None)
            for name, value in zip(names, moved, strict=True):
                landing[name] = value
            return moved

        return send

    def _bind_ring(
        self, owner: int, ring: int, microbatch: int, shape: StageShape
    ) -> list[BoundAction]:
        """Sampling, as a part of the last run, and the way of the ids to the next iteration."""
        head, move = self._last.bind_head(microbatch, shape), self._ids_move(shape)
        results, held = self._results, self._first.held[microbatch]

        def sample() -> Sequence[Array]:
            ids, logprobs = head()
            results[microbatch] = ids, logprobs
            return ids, logprobs

        def send_ids() -> Sequence[Array]:
            moved = move([results[microbatch][0]])
            [held["ids"]] = moved
            return moved

        return [
            (owner, Run(ring, microbatch), sample),
            (owner, Send(ring, microbatch), send_ids),
        ]

    def _ids_move(self, shape: StageShape) -> Move:
        return self._move(self._last, self._first, (IDS,), shape)

    def _move(
        self,
        source: GroupRunner,
        to: GroupRunner,
        tensors: Sequence[TensorSpec],
        shape: StageShape,
    ) -> Move:
        here = [source.wire(tensor, shape) for tensor in tensors]
        there = [to.wire(tensor, shape).sharding for tensor in tensors]
        assert all(sharding is not None for sharding in there)
        return self.transport.bind(here, [s for s in there if s is not None])

    def _owner_after(self, stage: StageBinding) -> int:
        return self.schedule.occurrences[stage.last + 1].owner
