"""Plans whose groups are processes, each on a core of its own: stages and moves truly overlap.

Plans of as many microbatches run in turns with each other and with the operators, which are timed
in this process on one core with as many microbatches: a machine that others use changes its speed
within seconds. Among them are two plans that are not judged; what moves cost is taken from them.
With one microbatch nothing overlaps, and what their iterations take beside their operators is
latency; with several, the busier process computes most of the time, and what it takes beside its
operators is what moves keep it busy.
"""

from __future__ import annotations

import dataclasses
import gc
import operator
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np

from weavejax.measure.expectation import Expectation, expect
from weavejax.measure.link_fit import SATURATED, SERIAL, fit_bandwidth, fit_link
from weavejax.measure.machine import BETWEEN_PROCESSES
from weavejax.measure.point import Point
from weavejax.measure.profiling import add_point, make_calibrator, only_point
from weavejax.measure.suite import BATCH, Case, Row, Setting
from weavejax.measure.typical import typical
from weavejax.models.costs import interface_bytes
from weavejax.models.loading import Model
from weavejax.plan import Parallelism, Plan, Template
from weavejax.profiles.estimator import Profile
from weavejax.profiles.schema import LinkFit, ProfileData
from weavejax.runtime.batches import greedy_rows
from weavejax.runtime.memory import Weights
from weavejax.schedule import build_schedule
from weavejax.workers.executor import ClusterExecutor
from weavejax.workers.launch import LocalLauncher, Place
from weavejax.workers.share import WorkerName

Progress = Callable[[str, int, int], None]
MOVING = {"moving in | rest": Template(cuts=(1,)), "moving halves": Template(cuts=(2,), offset=1)}
"""Two moves a layer, as the plans have that are judged: between a short and a long stage, and
between two of two operators."""


class OneCoreLauncher(LocalLauncher):
    """Workers of this machine on one core each, the first one where operators are timed.

    Raises:
        ValueError: fewer cores than workers.
    """

    def place(self, plan: Plan, interface: str) -> dict[WorkerName, Place]:
        places = super().place(plan, interface)
        cores = sorted(os.sched_getaffinity(0), reverse=True)
        if len(cores) < len(places):
            raise ValueError(
                f"every group needs a core of its own: {len(places)} groups, got {len(cores)} cores"
            )
        return {
            name: dataclasses.replace(place, cores=(core,))
            for (name, place), core in zip(places.items(), cores, strict=False)
        }


class ClusterRun:
    """A plan in processes, and the timings of its iterations so far."""

    def __init__(self, model: Model, plan: Plan, cores: Sequence[int]) -> None:
        self.plan = plan
        self.round_trips_s: list[float] = []
        owners = build_schedule(plan, model.config).owners
        self._moves = sum(map(operator.ne, owners, (*owners[1:], owners[0])))
        mine = os.sched_getaffinity(0)
        os.sched_setaffinity(0, set(cores))  # what the launcher may deal out
        try:
            self.executor = ClusterExecutor(model, plan, OneCoreLauncher(), chunks=(8,))
        finally:
            os.sched_setaffinity(0, mine)

    def sample(self, iterations: int = 2) -> None:
        """Time a few iterations once more, one ahead of the tokens seen, as an engine runs."""
        rows, context = self.plan.microbatch_rows, self.plan.workload.context
        ones, count = np.ones(rows, np.int32), self.plan.microbatches
        for microbatch in range(count):
            start = ones * max(0, context - iterations - 2)
            self.executor.set_rows(microbatch, start, ones, greedy_rows(rows))
        prefixes = dict.fromkeys(range(count), context)
        before = self.executor.decode(prefixes)
        np.asarray(before[count - 1][0])
        start_s = time.perf_counter()
        before = self.executor.decode(prefixes)
        for _ in range(iterations - 1):
            after = self.executor.decode(prefixes)
            np.asarray(before[count - 1][0])
            before = after
        np.asarray(before[count - 1][0])
        self.round_trips_s.append((time.perf_counter() - start_s) / iterations)

    def time_moves(self) -> float:
        """Seconds of a move while nothing computes: the mean over one pass."""
        times = self.executor.time_apart("moves", self.plan.workload.context)
        return float(np.mean(list(times.values()))) / self._moves

    def close(self) -> None:
        """End the processes."""
        self.executor.close()


def measure_clustered(
    setting: Setting,
    model: Model,
    data: ProfileData,
    cores: Sequence[int],
    *,
    rounds: int,
    progress: Progress = lambda what, done, total: None,
) -> tuple[list[Row], ProfileData]:
    """Profile and run the plans of a setting that have a core for every group.

    Args:
        setting: model, context and plans.
        model: the setting's.
        data: the profile so far.
        cores: one for each group; this process should be confined to one of them.
        rounds: turns of operators and plans.
        progress: called with (what, done, total).
    """
    cases = [case for case in setting.cases if case.groups <= len(cores)]
    counts = sorted({case.microbatches for case in cases} | {SERIAL, SATURATED})
    weights: list[Weights] = []
    batches: dict[int, _Batch] = {}
    for microbatches in counts:
        mine = [case for case in cases if case.microbatches == microbatches]
        title = f"{setting.model} at {setting.context}, {microbatches} microbatches"
        moving = [
            Case(name=name, template=template, groups=2, microbatches=microbatches)
            for name, template in MOVING.items()
        ]
        batches[microbatches], weights = _measure_batch(
            setting, model, [*moving, *mine], weights, cores, rounds, partial(progress, title)
        )
    link = _fit(setting, model, data, batches)
    rows = {
        case: _row(setting, case, batches[case.microbatches], _with_link(data, link), model)
        for case in cases
    }
    data = _with_link(data, link)
    for batch in batches.values():
        data = add_point(data, "cpu", model, *batch.where)
    return [rows[case] for case in cases], data


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """Plans of as many microbatches, and what the operators took between their iterations."""

    plans: dict[str, Plan]
    times_s: dict[str, Sequence[float]]
    """round trips of every plan"""
    point: Point
    move_s: float
    """a move of a plan that is not judged, while nothing computes"""

    @property
    def where(self) -> tuple[int, int, Point]:
        """Rows, context, and what the operators took there."""
        plan = next(iter(self.plans.values()))
        return plan.microbatch_rows, plan.workload.context, self.point


def _measure_batch(
    setting: Setting,
    model: Model,
    cases: Sequence[Case],
    weights: list[Weights],
    cores: Sequence[int],
    rounds: int,
    progress: Callable[[int, int], None],
) -> tuple[_Batch, list[Weights]]:
    """Take turns; also the weights, for the next batch's operators."""
    plans = {case.name: case.plan(model.config, setting.context) for case in cases}
    microbatches = cases[0].microbatches
    calibrator = make_calibrator(
        model,
        Parallelism(),
        BATCH // microbatches,
        setting.context,
        device="cpu",
        dtype="float32",
        microbatches=microbatches,
        weights=weights,
    )
    with ExitStack() as stack:
        runs: dict[str, ClusterRun] = {}
        for name, plan in plans.items():
            runs[name] = ClusterRun(model, plan, cores)
            stack.callback(runs[name].close)
        moves_s = []
        for done in range(rounds):
            progress(done, rounds)
            calibrator.sample(1)
            for run in runs.values():
                run.sample()
            moves_s.append(runs[next(iter(MOVING))].time_moves())
        progress(rounds, rounds)
    gc.collect()
    batch = _Batch(
        plans=plans,
        times_s={name: run.round_trips_s for name, run in runs.items()},
        point=calibrator.point(),
        move_s=float(typical(moves_s)),
    )
    return batch, calibrator.weights


def _fit(setting: Setting, model: Model, data: ProfileData, batches: dict[int, _Batch]) -> LinkFit:
    plans = {(name, n): batch.plans[name] for n, batch in batches.items() for name in MOVING}
    timed = next(iter(MOVING))
    interfaces = build_schedule(plans[timed, SERIAL], model.config).interfaces
    moved = sum(interface_bytes(tensors, 4) for tensors in interfaces) / len(interfaces)
    bandwidth = fit_bandwidth(
        {plans[timed, n].microbatch_rows * moved: batch.move_s for n, batch in batches.items()}
    )
    profiles = {n: only_point(data, "cpu", model, *batch.where) for n, batch in batches.items()}

    def predict(which: tuple[str, int], link: LinkFit) -> float:
        profile = Profile(_with_link(profiles[which[1]], link))
        return _expect(plans[which], profile).round_trip_time_s

    measured_s = {(name, n): float(typical(batches[n].times_s[name])) for name, n in plans}
    return fit_link(predict, measured_s, bandwidth)


def _with_link(data: ProfileData, link: LinkFit) -> ProfileData:
    device = data.devices["cpu"]
    device = dataclasses.replace(device, links={**device.links, BETWEEN_PROCESSES: link})
    return dataclasses.replace(data, devices={**data.devices, "cpu": device})


def _expect(plan: Plan, profile: Profile) -> Expectation:
    return expect(plan, profile, shared=False, link=BETWEEN_PROCESSES)


def _row(setting: Setting, case: Case, batch: _Batch, data: ProfileData, model: Model) -> Row:
    """The plan from the operators timed between its own iterations."""
    plan, times_s = batch.plans[case.name], batch.times_s[case.name]
    low, middle, high = np.percentile(times_s, (25, 50, 75))
    profile = Profile(only_point(data, "cpu", model, *batch.where))
    return Row(
        model=setting.model,
        context=setting.context,
        plan=case.name,
        microbatches=plan.microbatches,
        predicted_s=_expect(plan, profile).round_trip_time_s,
        measured_s=float(typical(times_s)),
        spread=float((high - low) / middle),
        trace_overhead=None,
    )
