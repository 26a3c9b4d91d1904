"""A plan running its steady decode iterations, for timing: every slot active, near its context."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from weavejax.measure.typical import typical
from weavejax.meshes.submesh import share_hardware
from weavejax.plan import Plan
from weavejax.runtime.batches import greedy_rows
from weavejax.runtime.executor import Executor
from weavejax.span import Span
from weavejax.trace import Recorder, spans_of


def same_devices(executor: Executor) -> list[tuple[int, int]]:
    """Pairs of groups between which nothing moves."""
    devices = [list(mesh.devices.flat) for mesh in executor.meshes]
    count = range(len(devices))
    return [(a, b) for a in count for b in count if a != b and devices[a] == devices[b]]


@dataclass
class PlanRun:
    """An executor and the timings of its iterations so far."""

    executor: Executor

    def __post_init__(self) -> None:
        self.plan: Plan = self.executor.plan
        self.round_trips_s: list[float] = []
        self.traced_s: list[float] = []
        self.spans: tuple[Span, ...] = ()

    @property
    def round_trip_time_s(self) -> float:
        """Typical seconds of an iteration."""
        return float(typical(self.round_trips_s))

    @property
    def spread(self) -> float:
        """Interquartile range over the median."""
        low, middle, high = np.percentile(self.round_trips_s, (25, 50, 75))
        return float((high - low) / middle)

    def sample(self, iterations: int = 4, *, traced: bool = False) -> None:
        """Time a few iterations once more; with a trace, its spans replace the last ones."""
        work = self._prepare(iterations)
        jax.block_until_ready(list(self.executor.decode(work).values()))
        self.executor.wait()
        recorder = Recorder(len(self.plan.groups)) if traced else None
        self.executor.observer = recorder
        start = time.perf_counter()
        results: Any = None
        for _ in range(iterations):
            results = self.executor.decode(work)
        jax.block_until_ready(results)
        self.executor.wait()
        seconds = (time.perf_counter() - start) / iterations
        self.executor.observer = None
        if recorder is None:
            self.round_trips_s.append(seconds)
            return
        self.traced_s.append(seconds)
        owners = self.executor.schedule.owners
        self.spans = spans_of(recorder.stop(), owners, shared=share_hardware(self.executor.meshes))

    def _prepare(self, iterations: int) -> dict[int, int]:
        rows, context = self.plan.microbatch_rows, self.plan.workload.context
        ones = np.ones(rows, np.int32)
        start = ones * max(0, context - iterations - 2)
        for microbatch in range(self.plan.microbatches):
            self.executor.set_rows(microbatch, start, ones, greedy_rows(rows))
        return dict.fromkeys(range(self.plan.microbatches), context)
