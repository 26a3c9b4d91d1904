"""Plans whose groups are processes, each on a core of its own: stages and moves truly overlap.

Operators are timed in this process on one core, alternately with the plan that runs, and a plan is
predicted from the samples taken beside it: a machine that others use changes its speed within
seconds. A move is timed inside the iterations of a plan
that computes the projections before attention in one process and the rest in another, which is
not among those that are judged: with one microbatch nothing overlaps, and what the iteration takes
beside its operators is latency; with four one process always computes, and what it takes beside
them is what moves keep it busy.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from weavejax.measure.calibrate import Calibrator, Point
from weavejax.measure.expectation import Expectation, expect
from weavejax.measure.link_fit import SATURATED, SERIAL, fit_link, fit_move
from weavejax.measure.machine import BETWEEN_PROCESSES
from weavejax.measure.profiling import add_point, make_calibrator
from weavejax.measure.suite import Case, Row, Setting
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
MOVING = Template(cuts=(1,))
"""Two moves a layer, as the plans have that are judged."""


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
        rounds: alternations of operators and each plan.
        progress: called with (what, done, total).
    """
    cases = [case for case in setting.cases if case.groups <= len(cores)]
    plans = [case.plan(model.config, setting.context) for case in cases]
    calibrators = _calibrators(setting, model, {plan.microbatch_rows for plan in plans})
    title = f"{setting.model} at {setting.context}"
    moving = []
    for done, rows in enumerate((min(calibrators), max(calibrators))):
        progress(f"{title}, moves", done, 2)
        for microbatches in (SERIAL, SATURATED):
            plan = _moving(setting, model, rows, microbatches)
            moving.append(_alternate(model, plan, calibrators[rows], cores, rounds))
    progress(f"{title}, moves", 2, 2)
    judged = []
    for done, plan in enumerate(plans):
        progress(title, done, len(plans))
        judged.append(_alternate(model, plan, calibrators[plan.microbatch_rows], cores, rounds))
    progress(title, len(plans), len(plans))
    # What a stage costs beside its operators is the host's, so that all samples count for it.
    overheads_s = [calibrator.point().stage_overhead_s for calibrator in calibrators.values()]
    overhead_s = statistics.median(overheads_s)

    def beside(known: ProfileData, run: _Run) -> ProfileData:
        rows = run.plan.microbatch_rows
        point = dataclasses.replace(run.point, stage_overhead_s=overhead_s)
        return add_point(known, "cpu", model, rows, setting.context, point)

    sizes = (moving[:2], moving[2:])
    link = fit_link([_move(model, runs, partial(beside, data)) for runs in sizes])
    data = _with_link(data, link)
    found = [
        _row(setting, case, run, Profile(beside(data, run)))
        for case, run in zip(cases, judged, strict=True)
    ]
    for rows, calibrator in calibrators.items():
        data = add_point(data, "cpu", model, rows, setting.context, calibrator.point())
    return found, data


def _calibrators(setting: Setting, model: Model, rows: set[int]) -> dict[int, Calibrator]:
    """One for every number of rows, fewest first; they share the weights."""
    found: dict[int, Calibrator] = {}
    weights: list[Weights] = []
    for count in sorted(rows):
        found[count] = make_calibrator(
            model,
            Parallelism(),
            count,
            setting.context,
            device="cpu",
            dtype="float32",
            weights=weights,
        )
        weights = found[count].weights
    return found


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A plan, its iterations, and what the operators took between them."""

    plan: Plan
    times_s: Sequence[float]
    point: Point


def _alternate(
    model: Model, plan: Plan, calibrator: Calibrator, cores: Sequence[int], rounds: int
) -> _Run:
    run = ClusterRun(model, plan, cores)
    try:
        for _ in range(rounds):
            calibrator.sample(1)
            run.sample()
    finally:
        run.close()
        gc.collect()
    return _Run(plan=plan, times_s=run.round_trips_s, point=calibrator.point(rounds))


def _move(
    model: Model, runs: Sequence[_Run], beside: Callable[[_Run], ProfileData]
) -> tuple[float, tuple[float, float]]:
    """Mean bytes of a move at these rows; its latency, and what it keeps each end busy."""
    plans = {run.plan.microbatches: run.plan for run in runs}
    data = {run.plan.microbatches: beside(run) for run in runs}

    def predict(microbatches: int, latency_s: float, busy_s: float) -> float:
        link = LinkFit(bandwidth_bytes_per_s=1e15, latency_s=latency_s, busy_s=busy_s)
        profile = Profile(_with_link(data[microbatches], link))
        return _expect(plans[microbatches], profile).round_trip_time_s

    measured_s = {run.plan.microbatches: float(typical(run.times_s)) for run in runs}
    interfaces = build_schedule(plans[SERIAL], model.config).interfaces
    moved = sum(interface_bytes(tensors, 4) for tensors in interfaces)
    size = plans[SERIAL].microbatch_rows * moved / len(interfaces)
    return size, fit_move(predict, measured_s)


def _moving(setting: Setting, model: Model, rows: int, microbatches: int) -> Plan:
    case = Case(name="moving", template=MOVING, groups=2, microbatches=microbatches)
    plan = case.plan(model.config, setting.context)
    group = dataclasses.replace(plan.groups[0], resident_batch=rows * microbatches)
    return plan.replace(groups=(group, group))


def _with_link(data: ProfileData, link: LinkFit) -> ProfileData:
    device = data.devices["cpu"]
    device = dataclasses.replace(device, links={**device.links, BETWEEN_PROCESSES: link})
    return dataclasses.replace(data, devices={**data.devices, "cpu": device})


def _expect(plan: Plan, profile: Profile) -> Expectation:
    return expect(plan, profile, shared=False, link=BETWEEN_PROCESSES)


def _row(setting: Setting, case: Case, run: _Run, profile: Profile) -> Row:
    low, middle, high = np.percentile(run.times_s, (25, 50, 75))
    return Row(
        model=setting.model,
        context=setting.context,
        plan=case.name,
        microbatches=run.plan.microbatches,
        predicted_s=_expect(run.plan, profile).round_trip_time_s,
        measured_s=float(typical(run.times_s)),
        spread=float((high - low) / middle),
        trace_overhead=None,
    )
