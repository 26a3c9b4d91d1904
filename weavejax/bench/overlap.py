"""What overlap gains: one plan with one and with several microbatches, beside the simulator.

The prediction is made from the workers' own stages and moves, each timed apart from the rest on
idle neighbours, and not from any iteration.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from weavejax.models.config import LayerKind, ModelConfig
from weavejax.models.loading import Model
from weavejax.models.random_source import RandomSource
from weavejax.plan import Plan
from weavejax.planner.simulator import simulate_schedule
from weavejax.runtime.batches import greedy_rows
from weavejax.schedule import Run, build_schedule
from weavejax.workers.executor import ClusterExecutor
from weavejax.workers.launch import Launcher
from weavejax.workers.options import WorkerOptions


@dataclass(frozen=True, kw_only=True)
class OverlapPoint:
    """One number of microbatches; times are medians over repetitions."""

    microbatches: int
    rows: int
    round_trip_s: float
    """Measured seconds per decode iteration."""
    simulated_s: float
    """The simulator's, from the timed stages and moves."""
    compute_s: tuple[float, ...]
    """Of each group per iteration: sum of its stages over all microbatches."""
    move_s: float
    """Mean of a move."""
    boundaries: int
    """Moves of one microbatch in an iteration."""

    @property
    def tokens_per_s(self) -> float:
        return self.rows / self.round_trip_s


def layers_only_model() -> Model:
    """A Llama of 140 million random weights, all but 3 % of them in its twelve layers.

    Nothing overlaps the head, which is a fifth of SmolLM2's work: there it, and not how well two
    groups overlap, decides the ratio.
    """
    config = ModelConfig(
        name="layers-only",
        model_type="llama",
        vocab_size=4096,
        hidden_size=1024,
        layer_kinds=(LayerKind(attention="full"),) * 12,
        num_heads=16,
        num_kv_heads=4,
        head_dim=64,
        intermediate_size=2816,
        max_position=2048,
        tie_embeddings=True,
    )
    return Model(config=config, source=RandomSource(config))


def measure_overlap(
    model: Model,
    make_plan: Callable[[int], Plan],
    launcher: Callable[[], Launcher],
    microbatches: Sequence[int] = (1, 2),
    *,
    repeats: int = 7,
    iterations: int = 12,
    options: WorkerOptions | None = None,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> list[OverlapPoint]:
    """Measure every number of microbatches, repetitions interleaved.

    Args:
        model: what to run.
        make_plan: microbatches to a plan; groups of one replica.
        launcher: makes the launcher of one engine.
        microbatches: numbers of microbatches.
        repeats: alternations.
        iterations: decode iterations of one repetition.
        options: of the workers.
        progress: called with (what, done, total).
    """
    benches = []
    try:
        for count in microbatches:
            benches.append(_Bench(model, make_plan(count), launcher(), options))
            progress("starting workers", len(benches), len(microbatches))
        for repeat in range(repeats):
            for bench in benches:
                bench.measure(iterations)
            progress("repetitions", repeat + 1, repeats)
        return [bench.point() for bench in benches]
    finally:
        for bench in benches:
            bench.executor.close()


class _Bench:
    """Workers of one plan, all slots in the middle of their context."""

    def __init__(self, model: Model, plan: Plan, launcher: Launcher, options: WorkerOptions | None):
        self.plan, self.schedule = plan, build_schedule(plan, model.config)
        try:
            self.executor = ClusterExecutor(model, plan, launcher, chunks=(8,), options=options)
        except BaseException:
            launcher.close()
            raise
        self._middle = plan.workload.context // 2
        self._iterations: list[float] = []
        self._runs: list[list[float]] = []
        self._moves: list[float] = []

    def measure(self, iterations: int) -> None:
        """One repetition: iterations, then stages and moves by themselves."""
        count, rows = self.plan.microbatches, self.plan.microbatch_rows
        ones = np.ones(rows, np.int32)
        for microbatch in range(count):
            self.executor.set_rows(microbatch, ones * self._middle, ones, greedy_rows(rows))
        prefixes = dict.fromkeys(range(count), self._middle + iterations + 1)
        np.asarray(self.executor.decode(prefixes)[0][0])
        start_s = time.perf_counter()
        results = [self.executor.decode(prefixes)]
        for _ in range(iterations - 1):  # one iteration ahead of the tokens seen, as an engine
            results.append(self.executor.decode(prefixes))
            np.asarray(results[-2][count - 1][0])
        np.asarray(results[-1][count - 1][0])
        self._iterations.append((time.perf_counter() - start_s) / iterations)
        for _ in range(3):
            self._runs.append(self._time_runs())
            moves = self.executor.time_apart("moves", self._middle)
            self._moves.append(max(max(seconds) for seconds in moves.values()))

    def _time_runs(self) -> list[float]:
        """Seconds of each stage occurrence, mean over microbatches."""
        timed = self.executor.time_apart("runs", self._middle)
        total = [0.0] * len(self.schedule.occurrences)
        for name, seconds in timed.items():
            runs = [a for a in self.schedule.group_actions(name.group) if isinstance(a, Run)]
            for action, value in zip(runs, seconds, strict=True):
                total[action.stage] += value / self.plan.microbatches
        return total

    def point(self) -> OverlapPoint:
        compute = [statistics.median(values) for values in zip(*self._runs, strict=True)]
        crossing = [bool(tensors) for tensors in self.schedule.interfaces]
        move_s = statistics.median(self._moves) / max(1, sum(crossing))
        moves = [move_s if crosses else 0.0 for crosses in crossing]
        owners = self.schedule.owners
        groups = tuple(
            sum(t for t, owner in zip(compute, owners, strict=True) if owner == group)
            * self.plan.microbatches
            for group in range(len(self.plan.groups))
        )
        return OverlapPoint(
            microbatches=self.plan.microbatches,
            rows=self.plan.batch,
            round_trip_s=statistics.median(self._iterations),
            simulated_s=simulate_schedule(self.schedule, compute, moves).round_trip_time_s,
            compute_s=groups,
            move_s=move_s,
            boundaries=sum(crossing),
        )
