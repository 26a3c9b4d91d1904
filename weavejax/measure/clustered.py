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
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from weavejax.measure.calibrate import Calibrator
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
    calibrators: dict[int, Calibrator] = {}
    weights: list[Weights] = []
    for rows in sorted({plan.microbatch_rows for plan in plans}):
        calibrators[rows] = make_calibrator(
            model,
            Parallelism(),
            rows,
            setting.context,
            device="cpu",
            dtype="float32",
            weights=weights,
        )
        weights = calibrators[rows].weights
    title = f"{setting.model} at {setting.context}"
    moves = []
    for done, rows in enumerate((min(calibrators), max(calibrators))):
        progress(f"{title}, moves", done, 2)
        moves.append(_move(setting, model, data, calibrators[rows], cores, rounds))
    progress(f"{title}, moves", 2, 2)
    data = _with_link(data, fit_link(moves))
    found = []
    for done, (case, plan) in enumerate(zip(cases, plans, strict=True)):
        progress(title, done, len(plans))
        rows, calibrator = plan.microbatch_rows, calibrators[plan.microbatch_rows]
        times = _alternate(model, plan, calibrator, cores, rounds)
        beside = add_point(data, "cpu", model, rows, setting.context, calibrator.point(rounds))
        found.append(_row(setting, case, plan, times, Profile(beside)))
    progress(title, len(plans), len(plans))
    for rows, calibrator in calibrators.items():
        data = add_point(data, "cpu", model, rows, setting.context, calibrator.point())
    return found, data


def _alternate(
    model: Model, plan: Plan, calibrator: Calibrator, cores: Sequence[int], rounds: int
) -> list[float]:
    run = ClusterRun(model, plan, cores)
    try:
        for _ in range(rounds):
            calibrator.sample(1)
            run.sample()
        return run.round_trips_s
    finally:
        run.close()
        gc.collect()


@dataclass(frozen=True, kw_only=True)
class _Moving:
    """A plan that moves often: what it took, and the operators timed beside it."""

    plan: Plan
    beside: ProfileData
    measured_s: float

    def predict(self, latency_s: float, busy_s: float) -> float:
        """Seconds of a round trip if a move took this."""
        link = LinkFit(bandwidth_bytes_per_s=1e15, latency_s=latency_s, busy_s=busy_s)
        return _expect(self.plan, Profile(_with_link(self.beside, link))).round_trip_time_s


def _move(
    setting: Setting,
    model: Model,
    data: ProfileData,
    calibrator: Calibrator,
    cores: Sequence[int],
    rounds: int,
) -> tuple[float, tuple[float, float]]:
    """Mean bytes of a move at these rows; its latency, and what it keeps each end busy."""
    runs: dict[int, _Moving] = {}
    for microbatches in (SERIAL, SATURATED):
        plan = _moving(setting, model, calibrator.rows, microbatches)
        measured_s = float(typical(_alternate(model, plan, calibrator, cores, rounds)))
        point = calibrator.point(rounds)
        beside = add_point(data, "cpu", model, calibrator.rows, setting.context, point)
        runs[microbatches] = _Moving(plan=plan, beside=beside, measured_s=measured_s)
    interfaces = build_schedule(runs[SERIAL].plan, model.config).interfaces
    moved = sum(interface_bytes(tensors, 4) for tensors in interfaces)
    cost = fit_move(
        lambda microbatches, *costs: runs[microbatches].predict(*costs),
        {microbatches: run.measured_s for microbatches, run in runs.items()},
    )
    return calibrator.rows * moved / len(interfaces), cost


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


def _row(setting: Setting, case: Case, plan: Plan, times: Sequence[float], profile: Profile) -> Row:
    expected = _expect(plan, profile)
    low, middle, high = np.percentile(times, (25, 50, 75))
    return Row(
        model=setting.model,
        context=setting.context,
        plan=case.name,
        microbatches=plan.microbatches,
        predicted_s=expected.round_trip_time_s,
        measured_s=float(typical(times)),
        spread=float((high - low) / middle),
        trace_overhead=None,
    )
