"""What the host's thread spends to submit actions, and how that grows with the stages of a plan."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from weavejax.models.loading import Model
from weavejax.plan import Plan
from weavejax.runtime.batches import greedy_rows
from weavejax.runtime.executor import Executor
from weavejax.schedule import Run


@dataclass(frozen=True, kw_only=True)
class HostPoint:
    """One plan. CPU time of the submitting thread, so that a busy machine counts little."""

    plan: str
    stages: int
    moves: int
    run_s: float
    """Median of a ``Run``."""
    move_s: float
    """Median of a ``Send`` with its ``Receive``; NaN without moves."""
    host_s: float
    """Of a whole iteration, everything around the actions included."""
    iteration_s: float
    """Wall time of an iteration."""

    @property
    def share(self) -> float:
        """Part of an iteration for which the host's thread is busy."""
        return self.host_s / self.iteration_s


def bench_host(
    model: Model,
    plans: Sequence[tuple[str, Plan]],
    *,
    iterations: int = 20,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> list[HostPoint]:
    """Measure every plan.

    Args:
        model: what to run.
        plans: (name, plan).
        iterations: decode iterations of each.
        progress: called with (what, done, total).
    """
    points = []
    for name, plan in plans:
        executor = Executor(model, plan, oversubscribe=True, chunks=(8,))
        points.append(_measure(name, executor, iterations))
        progress("plans", len(points), len(plans))
    return points


def _measure(name: str, executor: Executor, iterations: int) -> HostPoint:
    rows, context = executor.plan.microbatch_rows, executor.plan.workload.context
    ones = np.ones(rows, np.int32)
    start_at = max(0, context - 3 * iterations)
    work = dict.fromkeys(range(executor.plan.microbatches), context)
    for microbatch in work:
        executor.set_rows(microbatch, ones * start_at, ones, greedy_rows(rows))
    jax.block_until_ready(executor.decode(work))
    start, host = time.perf_counter(), time.thread_time()
    for _ in range(iterations):
        results = executor.decode(work)
    host = time.thread_time() - host
    jax.block_until_ready(results)
    executor.wait()
    wall = time.perf_counter() - start
    costs: dict[bool, list[float]] = {True: [], False: []}
    last = time.thread_time()

    def observe(group: int, action: Any, arrays: Any) -> None:
        nonlocal last
        now = time.thread_time()
        costs[isinstance(action, Run)].append(now - last)
        last = time.thread_time()

    executor.observer = observe
    for _ in range(iterations):
        last = time.thread_time()
        jax.block_until_ready(executor.decode(work))
    executor.observer = None
    moves = len(costs[False]) // iterations
    return HostPoint(
        plan=name,
        stages=len(executor.schedule.occurrences),
        moves=moves,
        run_s=statistics.median(costs[True]),
        move_s=statistics.median(costs[False]) if moves else float("nan"),
        host_s=host / iterations,
        iteration_s=wall / iterations,
    )
