"""The executor of an engine whose device groups are worker processes.

It has the face of :class:`weavejax.runtime.executor.Executor`: rows, prefill, decode. What it
returns are rows that are still on their way.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np

from weavejax.models.loading import Model
from weavejax.plan import Plan
from weavejax.runtime.batches import PrefillBatch, idle_prefill
from weavejax.runtime.cells import plan_cells
from weavejax.runtime.passes import Rows
from weavejax.runtime.sampling import RowSampling
from weavejax.schedule import build_schedule
from weavejax.workers.coordinator import Coordinator
from weavejax.workers.failure import WorkerError
from weavejax.workers.handshake import listen, new_secret
from weavejax.workers.launch import Launcher, Place
from weavejax.workers.model_source import describe_model
from weavejax.workers.options import MoveKind, WorkerOptions
from weavejax.workers.orders import Orders
from weavejax.workers.results import PassResult, RemoteRows
from weavejax.workers.share import WorkerName

Pair = tuple[Rows, Rows]


class ClusterExecutor:
    """Workers of one plan, and the coordinator's side of every pass."""

    def __init__(
        self,
        model: Model,
        plan: Plan,
        launcher: Launcher,
        *,
        dtype: Any = None,
        chunks: Sequence[int] = (16, 128),
        options: WorkerOptions | None = None,
    ):
        self.plan, self.cells = plan, plan_cells(plan)
        self.options = options or WorkerOptions()
        self.chunks = tuple(sorted({min(chunk, plan.workload.context) for chunk in chunks}))
        self.restarts = 0
        """Times the workers were started again."""
        self.last_failure: WorkerError | None = None
        self._restarts_left = self.options.restarts
        self._owners = build_schedule(plan, model.config).owners
        self._model, self._launcher = describe_model(model), launcher
        self._dtype = None if dtype is None else jnp.dtype(dtype).name
        self._places = launcher.place(plan, self.options.interface)
        self._start()

    @property
    def moves(self) -> MoveKind:
        """How rows travel between the workers that run now."""
        return "device" if self.coordinator.device_moves else "sockets"

    @property
    def passes(self) -> int:
        """Passes that the workers of this session have been told to do."""
        return self._pass

    def workers(self) -> list[tuple[WorkerName, Place, tuple[str, int], int]]:
        """Every worker with its place, data address and process number."""
        processes = self.coordinator.process_ids()
        addresses = self.coordinator.addresses()
        return [
            (name, place, addresses[name], processes[name]) for name, place in self._places.items()
        ]

    @property
    def programs(self) -> Any:
        """How many programs the workers compiled."""
        return SimpleNamespace(compiled=self.coordinator.compiled)

    def _start(self) -> None:
        secret, listener = new_secret(), listen(self.options.interface)
        try:
            orders = {name: self._orders(name, listener, secret) for name in self._places}
            self.coordinator = Coordinator(orders, listener, secret, self._launcher, self.options)
        finally:
            listener.close()
        self._pass = 0
        try:
            self._warm_up()
        except BaseException:
            self.coordinator.close()
            raise

    def _orders(self, name: WorkerName, listener: socket.socket, secret: bytes) -> Orders:
        place, group = self._places[name], self.plan.groups[name.group]
        single = all(group.tensor_parallel == 1 for group in self.plan.groups)
        platform = self.options.platform or ("cpu" if group.device == "cpu" else None)
        return Orders(
            name=str(name),
            coordinator=(self.options.interface, listener.getsockname()[1]),
            secret=secret.hex(),
            interface=place.interface,
            plan=self.plan.replace(prediction=None).to_dict(),
            model=self._model,
            dtype=self._dtype,
            chunks=self.chunks,
            platform=platform,
            cores=place.cores if platform == "cpu" else None,
            moves=self.options.moves if single else "sockets",
            silence_s=self.options.silence_s,
        )

    def _warm_up(self) -> None:
        """Run each kind of pass once on idle rows; programs are compiled already."""
        microbatches = range(self.plan.microbatches)
        results = [
            self.prefill(idle_prefill(microbatch, self.cells.count, chunk), sample=True)
            for microbatch in microbatches
            for chunk in self.chunks
        ]
        results += self.decode(dict.fromkeys(microbatches, 1)).values()
        for result in results:
            assert result is not None
            np.asarray(result[0])

    # -- after a failure -----------------------------------------------------------------------

    def recover(self, failure: BaseException) -> bool:
        """Start the workers again after one failed. All caches are empty and all rows idle.

        Returns:
            False when the restarts are used up; the workers have been ended then.
        """
        self.last_failure = failure if isinstance(failure, WorkerError) else None
        while self._restarts_left > 0:
            self._restarts_left -= 1
            self.coordinator.close()
            try:
                self._start()
            except WorkerError as error:
                self.last_failure = error
                continue
            self.restarts += 1
            return True
        self.coordinator.close()
        return False

    def allow_restarts(self, count: int) -> None:
        """How many more restarts there may be."""
        self._restarts_left = count

    def close(self) -> None:
        """End every worker."""
        self.coordinator.close()
        self._launcher.close()

    # -- passes --------------------------------------------------------------------------------

    def set_rows(
        self, microbatch: int, starts: np.ndarray, lengths: np.ndarray, sampling: RowSampling
    ) -> None:
        """Set a microbatch's rows; every worker applies them right before the next pass."""
        self.coordinator.broadcast(
            {"do": "rows", "pass": self._pass + 1, "microbatch": microbatch},
            [np.asarray(value) for value in (starts, lengths, *sampling)],
        )

    def prefill(self, batch: PrefillBatch, *, sample: bool | None = None) -> Pair | None:
        """Run one chunk of prompts; see :meth:`weavejax.runtime.executor.Executor.prefill`."""
        sample = bool(batch.done.any()) if sample is None else sample
        result = self._next_pass([batch.microbatch] if sample else [])
        header = {"do": "prefill", "pass": self._pass, "microbatch": batch.microbatch}
        arrays = (batch.tokens, batch.starts, batch.lengths, batch.slots, batch.done)
        self.coordinator.broadcast(
            header | {"prefix": batch.prefix, "sample": sample},
            [np.asarray(value) for value in (*arrays, *batch.sampling)],
        )
        return _rows(result[batch.microbatch]) if sample else None

    def decode(self, prefixes: dict[int, int]) -> dict[int, Pair]:
        """Run one iteration; see :meth:`weavejax.runtime.executor.Executor.decode`."""
        results = self._next_pass(prefixes)
        self.coordinator.broadcast(
            {"do": "decode", "pass": self._pass, "prefixes": sorted(prefixes.items())}
        )
        return {microbatch: _rows(result) for microbatch, result in results.items()}

    def time_apart(self, what: str, prefix: int) -> dict[WorkerName, list[float]]:
        """Seconds that every worker's ``runs`` or ``moves`` of one iteration take by themselves."""
        self._next_pass([])
        self.coordinator.broadcast({"do": f"time {what}", "pass": self._pass, "prefix": prefix})
        return self.coordinator.times(self._pass)

    def _next_pass(self, microbatches: Any) -> dict[int, PassResult]:
        self._pass += 1
        replicas = self.plan.groups[self._owners[-1]].replicas
        return {
            microbatch: self.coordinator.expect(self._pass, microbatch, replicas)
            for microbatch in microbatches
        }


def _rows(result: PassResult) -> Pair:
    return RemoteRows(result, 0), RemoteRows(result, 1)
