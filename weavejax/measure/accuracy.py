"""How well round trips are predicted, over plans that nothing was fitted to.

Operators and plans are timed alternately, round by round, so that a machine that grows slower or
faster does so for both. The profile comes from the operators alone; no figure of a plan enters it.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from weavejax.measure.calibrate import Calibrator
from weavejax.measure.clustered import measure_clustered
from weavejax.measure.expectation import expect
from weavejax.measure.profiling import add_point, make_calibrator, only_point, start_profile
from weavejax.measure.resident import keep_resident
from weavejax.measure.running import PlanRun, same_devices
from weavejax.measure.suite import Row, Setting
from weavejax.meshes.submesh import share_hardware
from weavejax.models.loading import Model
from weavejax.plan import Parallelism
from weavejax.profiles.estimator import Profile
from weavejax.profiles.schema import ProfileData
from weavejax.runtime.executor import Executor
from weavejax.runtime.memory import Weights

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Of the plans of a setting: the one predicted to be fastest, and the fastest."""

    model: str
    context: int
    plans: int
    chosen: str
    fastest: str
    slower: float
    """How much longer the chosen plan's measured round trip is."""


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """The table and what follows from it."""

    rows: tuple[Row, ...]

    @property
    def mean_error(self) -> float:
        """Mean absolute error of the round trip."""
        return statistics.mean(abs(row.error) for row in self.rows)

    @property
    def trace_overhead(self) -> float | None:
        """Median over the plans that were traced."""
        known = [row.trace_overhead for row in self.rows if row.trace_overhead is not None]
        return statistics.median(known) if known else None

    def choices(self) -> list[Choice]:
        """What planning with the profile would have picked at every setting."""
        found = []
        for key in dict.fromkeys((row.model, row.context) for row in self.rows):
            rows = [row for row in self.rows if (row.model, row.context) == key]
            chosen = min(rows, key=lambda row: row.predicted_s)
            fastest = min(rows, key=lambda row: row.measured_s)
            found.append(
                Choice(
                    model=key[0],
                    context=key[1],
                    plans=len(rows),
                    chosen=f"{chosen.plan}, {chosen.microbatches} microbatches",
                    fastest=f"{fastest.plan}, {fastest.microbatches} microbatches",
                    slower=chosen.measured_s / fastest.measured_s - 1,
                )
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        return {
            "mean_absolute_error": self.mean_error,
            "trace_overhead": self.trace_overhead,
            "plans": [asdict(row) | {"error": row.error} for row in self.rows],
            "choices": [asdict(choice) for choice in self.choices()],
        }


def measure_accuracy(
    settings: Sequence[Setting],
    models: dict[str, Callable[[], Model]],
    *,
    rounds: int = 10,
    cores: Sequence[int] | None = None,
    progress: Progress = lambda what, done, total: None,
) -> tuple[Accuracy, Profile]:
    """Profile and run every setting.

    Args:
        settings: models, contexts and plans.
        models: how to get each model.
        rounds: alternations of operators and plans.
        cores: make every group a process on one of these cores; groups of one process otherwise.
        progress: called with (what, done, total).

    Returns:
        The table, and the profile the predictions came from.
    """
    data = start_profile(None, "cpu", "float32")
    rows: list[Row] = []
    for done, setting in enumerate(settings):
        progress("settings", done, len(settings))
        model = keep_resident(models[setting.model]())
        if cores is None:
            found, data = _measure_setting(setting, model, data, rounds, progress)
        else:
            found, data = measure_clustered(
                setting, model, data, cores, rounds=rounds, progress=progress
            )
        rows += found
        del model
        gc.collect()
    progress("settings", len(settings), len(settings))
    return Accuracy(rows=tuple(rows)), Profile(data)


def _measure_setting(
    setting: Setting, model: Model, data: ProfileData, rounds: int, progress: Progress
) -> tuple[list[Row], ProfileData]:
    runs: list[PlanRun] = []
    for case in setting.cases:
        plan = case.plan(model.config, setting.context)
        runs.append(PlanRun(Executor(model, plan, oversubscribe=True, chunks=(8,))))
    weights: list[Weights] = []
    calibrators: dict[int, Calibrator] = {}
    for run in runs:
        microbatches = run.plan.microbatches
        if microbatches in calibrators:
            continue
        calibrator = calibrators[microbatches] = make_calibrator(
            model,
            Parallelism(),
            run.plan.microbatch_rows,
            setting.context,
            device="cpu",
            dtype="float32",
            microbatches=microbatches,
            weights=weights,
        )
        weights = calibrator.weights
    title = f"{setting.model} at {setting.context}"
    for done in range(rounds):
        progress(title, done, rounds)
        for calibrator in calibrators.values():
            calibrator.sample(1)
        for run in runs:
            run.sample(2)
            run.sample(2, traced=True)
    progress(title, rounds, rounds)

    points = {
        microbatches: (calibrator.rows, setting.context, calibrator.point())
        for microbatches, calibrator in calibrators.items()
    }
    rows = []
    for case, run in zip(setting.cases, runs, strict=True):
        beside = only_point(data, "cpu", model, *points[case.microbatches])
        rows.append(_row(setting, case.name, run, Profile(beside)))
    for point in points.values():
        data = add_point(data, "cpu", model, *point)
    return rows, data


def _row(setting: Setting, name: str, run: PlanRun, profile: Profile) -> Row:
    meshes = run.executor.meshes
    expected = expect(
        run.plan, profile, shared=share_hardware(meshes), local=same_devices(run.executor)
    )
    pairs = zip(run.traced_s, run.round_trips_s, strict=True)
    return Row(
        model=setting.model,
        context=setting.context,
        plan=name,
        microbatches=run.plan.microbatches,
        predicted_s=expected.round_trip_time_s,
        measured_s=run.round_trip_time_s,
        spread=run.spread,
        trace_overhead=float(np.median([traced / plain - 1 for traced, plain in pairs])),
    )
