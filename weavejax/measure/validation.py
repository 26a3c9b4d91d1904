"""A plan's prediction beside what it did: stages, moves, round trip, occupancy, memory."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from weavejax.measure.expectation import Expectation, expect
from weavejax.measure.running import PlanRun, same_devices
from weavejax.meshes.submesh import share_hardware
from weavejax.models.loading import Model
from weavejax.plan import Plan
from weavejax.profiles.estimator import Profile
from weavejax.runtime.executor import Executor
from weavejax.span import Span

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One figure, predicted and measured."""

    name: str
    predicted: float
    measured: float
    note: str = ""

    @property
    def error(self) -> float:
        """Predicted over measured, less one; 0 where neither is anything."""
        if not self.measured:
            return 0.0 if not self.predicted else float("inf")
        return self.predicted / self.measured - 1


@dataclass(frozen=True, kw_only=True)
class Validation:
    """A plan that ran here."""

    expectation: Expectation
    round_trip: Pair
    """Seconds of an iteration."""
    spread: float
    """Of the measured round trips: interquartile range over median."""
    stages: tuple[Pair, ...]
    """Seconds of each stage for one microbatch."""
    moves: tuple[Pair, ...]
    occupancy: tuple[Pair, ...]
    """Busy fraction of each group."""
    memory: tuple[Pair, ...]
    """Bytes of weights and caches on each device, against its live buffers."""
    trace_overhead: float
    """Part by which tracing lengthens an iteration: what stages and moves were read from."""
    measured_spans: tuple[Span, ...]

    def within(self, tolerance: float) -> bool:
        """Whether round trip and memory were predicted to this part of what was measured."""
        return all(abs(p.error) <= tolerance for p in (self.round_trip, *self.memory))


def validate(
    model: Model,
    plan: Plan,
    profile: Profile,
    *,
    oversubscribe: bool = False,
    dtype: Any = None,
    repeats: int = 10,
    iterations: int = 4,
    progress: Progress = lambda what, done, total: None,
) -> Validation:
    """Run a plan's decode iterations with every slot near its context, and compare.

    Args:
        model: what to serve.
        plan: how.
        profile: what to predict from.
        oversubscribe: let groups share devices.
        dtype: of weights and caches; the executor's choice by default.
        repeats: samples without and with a trace, alternately.
        iterations: of a sample.
        progress: called with (what, done, total).
    """
    before = live_buffers()
    executor = Executor(
        model, plan, oversubscribe=oversubscribe, dtype=dtype, chunks=(8,), progress=progress
    )
    run = PlanRun(executor)
    overheads = []
    for done in range(repeats):
        progress("measuring", done, repeats)
        run.sample(iterations)
        run.sample(iterations, traced=True)
        overheads.append(run.traced_s[-1] / run.round_trips_s[-1] - 1)
    progress("measuring", repeats, repeats)
    held = {device: size - before.get(device, 0) for device, size in live_buffers().items()}
    return compare(run, profile, held, statistics.median(overheads))


def compare(
    run: PlanRun, profile: Profile, held: dict[Any, int], trace_overhead: float
) -> Validation:
    """What a run measured beside what the profile says of its plan."""
    executor = run.executor
    expectation = expect(
        run.plan,
        profile,
        shared=share_hardware(executor.meshes),
        local=same_devices(executor),
    )
    return Validation(
        expectation=expectation,
        round_trip=Pair(
            name="round trip",
            predicted=expectation.round_trip_time_s,
            measured=run.round_trip_time_s,
            note=expectation.how,
        ),
        spread=run.spread,
        stages=_stages(expectation, executor, run.spans),
        moves=_moves(expectation, run.spans),
        occupancy=_occupancy(expectation, run),
        memory=_memory(expectation, executor, held),
        trace_overhead=trace_overhead,
        measured_spans=run.spans,
    )


def live_buffers() -> dict[Any, int]:
    """Bytes of the arrays that live on every device of this process."""
    gc.collect()
    total: dict[Any, int] = {}
    for array in jax.live_arrays():
        if not array.is_deleted():
            for shard in array.addressable_shards:
                total[shard.device] = total.get(shard.device, 0) + shard.data.nbytes
    return total


def _stages(
    expectation: Expectation, executor: Executor, spans: Sequence[Span]
) -> tuple[Pair, ...]:
    measured = _medians(span for span in spans if span.kind == "compute")
    names = [stage.operators for stage in expectation.prediction.stages]
    pairs = []
    for stage in executor.stages:
        first, last = names[stage.index], names[stage.last]
        seconds = measured.get(("stage", stage.index), 0.0)
        if stage.head is not None:
            seconds += measured.get(("head", stage.last), 0.0)
        pairs.append(
            Pair(
                name=f"{first.split('..')[0]}..{last.split('..')[-1]}",
                predicted=sum(expectation.compute_s[stage.index : stage.last + 1]),
                measured=seconds,
                note=f"group {stage.owner}",
            )
        )
    return tuple(pairs)


def _moves(expectation: Expectation, spans: Sequence[Span]) -> tuple[Pair, ...]:
    measured = _medians(span for span in spans if span.kind == "send")
    return tuple(
        Pair(
            name=f"boundary {move.occurrence}",
            predicted=expectation.move_s[move.occurrence],
            measured=measured.get(("send", move.occurrence), 0.0),
            note=f"group {move.source_group} to {move.destination_group}, "
            f"{move.bytes_per_row} bytes a row",
        )
        for move in expectation.prediction.moves
    )


def _medians(spans: Any) -> dict[tuple[str, int | None], float]:
    """Median seconds by (stage, head or send; occurrence)."""
    times: dict[tuple[str, int | None], list[float]] = {}
    for span in spans:
        what = "send" if span.kind == "send" else "head" if " head " in span.name else "stage"
        times.setdefault((what, span.occurrence), []).append(span.duration_s)
    return {key: statistics.median(values) for key, values in times.items()}


def _occupancy(expectation: Expectation, run: PlanRun) -> tuple[Pair, ...]:
    spans = [span for span in run.spans if span.kind == "compute"]
    iterations = 1 + max((span.iteration for span in spans), default=0)
    return tuple(
        Pair(
            name=f"group {index}",
            predicted=group.busy_fraction,
            measured=sum(s.duration_s for s in spans if s.group == index)
            / (iterations * run.traced_s[-1]),
        )
        for index, group in enumerate(expectation.prediction.groups)
    )


def _memory(expectation: Expectation, executor: Executor, held: dict[Any, int]) -> tuple[Pair, ...]:
    predicted: dict[Any, float] = {}
    plan = expectation.plan
    for group, mesh, memory in zip(
        plan.groups, executor.meshes, expectation.prediction.groups, strict=True
    ):
        for device in mesh.devices.flat:
            share = (memory.weight_bytes + memory.cache_bytes) / group.tensor_parallel
            predicted[device] = predicted.get(device, 0.0) + share
    return tuple(
        Pair(name=str(device), predicted=size, measured=float(held.get(device, 0)))
        for device, size in predicted.items()
    )
