"""``weavejax profile MODEL``: the operators of a model, timed on this machine over a grid."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from weavejax.measure.calibrate import MICROBATCHES, Calibrator
from weavejax.measure.machine import IN_PROCESS, describe_device, measure_link
from weavejax.measure.point import Point
from weavejax.meshes.submesh import MODEL, REPLICA
from weavejax.models.loading import Model
from weavejax.models.sequence import operator_sequence
from weavejax.plan import DeviceGroup, Parallelism
from weavejax.profiles.estimator import Profile
from weavejax.profiles.files import load_data
from weavejax.profiles.operator_key import operator_key
from weavejax.profiles.operator_times import OperatorTimes, merge_times
from weavejax.profiles.schema import DeviceProfile, ProfileData
from weavejax.runtime.memory import Weights

Progress = Callable[[str, int, int], None]
OVERHEADS = "stage_overheads_s"
"""Attribute of a device: the overhead found at every point, as JSON."""
LATENCIES = "move_latencies_s"
"""Attribute of a device: what a move took at every point beside its bytes, as JSON."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What to measure: every number of rows at every context, for every parallelism."""

    rows: tuple[int, ...]
    """of one replica in one microbatch"""
    contexts: tuple[int, ...]
    parallelisms: tuple[Parallelism, ...] = (Parallelism(),)

    def points(self) -> list[tuple[Parallelism, int, int]]:
        return [
            (cut, rows, context)
            for cut in self.parallelisms
            for context in sorted(set(self.contexts))
            for rows in sorted(set(self.rows))
            if rows % cut.attention_data_parallel == 0
        ]


def profile_model(
    model: Model,
    grid: Grid,
    *,
    device: str = "cpu",
    dtype: str | None = None,
    repeats: int = 8,
    out: Path | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Profile:
    """Measure a model's operators on the devices of this process.

    Args:
        model: whose operators.
        grid: where.
        device: what plans call such a device.
        dtype: of weights and caches; float32 on CPU and bfloat16 elsewhere by default.
        repeats: samples of every point; the mean of their middle half counts.
        out: where the profile is kept. It is written after every point, and what an earlier run
            has left there is kept and not measured again.
        progress: called with (what, done, total).

    Raises:
        ValueError: the file in ``out`` was measured with another dtype, JAX or number of cores.
    """
    here = jax.devices()
    dtype = dtype or ("float32" if here[0].platform == "cpu" else "bfloat16")
    data = start_profile(out, device, dtype)
    points = grid.points()
    weights: dict[Parallelism, list[Weights]] = {}
    for done, (cut, rows, context) in enumerate(points):
        progress("measuring operators", done, len(points))
        if has_point(data.devices[device], model, cut, rows, context):
            continue
        calibrator = make_calibrator(
            model, cut, rows, context, device=device, dtype=dtype, weights=weights.get(cut, ())
        )
        weights[cut] = calibrator.weights
        for _ in range(repeats):
            calibrator.sample()
        data = add_point(data, device, model, rows, context, calibrator.point())
        if out is not None:
            Profile(data).save(out)
    progress("measuring operators", len(points), len(points))
    return Profile(data)


def make_calibrator(
    model: Model,
    cut: Parallelism,
    rows: int,
    context: int,
    *,
    device: str,
    dtype: str,
    microbatches: int = MICROBATCHES,
    weights: Sequence[Weights] = (),
) -> Calibrator:
    """A calibrator on the first devices of this process.

    Raises:
        ValueError: fewer devices than the parallelism needs.
    """
    ways, here = cut.tensor_parallel, jax.devices()
    if ways > len(here):
        raise ValueError(
            f"tensor_parallel={ways} needs {ways} devices, got {len(here)} "
            f"(on a CPU: --cpu-devices {ways})"
        )
    meshes = [
        Mesh(np.array(devices, dtype=object).reshape(1, ways), (REPLICA, MODEL))
        for devices in (here[:ways], here[ways : 2 * ways])
        if len(devices) == ways
    ]
    group = DeviceGroup(
        device=device,
        resident_batch=microbatches * rows,
        **{field.name: getattr(cut, field.name) for field in dataclasses.fields(Parallelism)},
    )
    return Calibrator(
        model,
        group,
        meshes[0],
        other=meshes[1] if len(meshes) > 1 else None,
        rows=rows,
        context=context,
        dtype=dtype,
        microbatches=microbatches,
        weights=weights,
    )


def start_profile(out: Path | None, device: str, dtype: str) -> ProfileData:
    """What ``out`` holds already, or a new profile of this machine without operators."""
    here = jax.devices()
    fresh = describe_device(device, here[0], dtype)
    if len(here) > 1:
        fresh = dataclasses.replace(fresh, links={IN_PROCESS: measure_link(here)})
    if out is None or not out.exists():
        name = out.stem if out else "measured"
        attribution = "measured with weavejax profile"
        return ProfileData(name=name, devices={device: fresh}, attribution=attribution)
    data = load_data(out)
    known = data.devices.get(device)
    if known is None:
        return dataclasses.replace(data, devices={**data.devices, device: fresh})
    for fact in ("dtype", "jax", "cores", "device_kind"):
        if known.attributes.get(fact) != fresh.attributes[fact]:
            raise ValueError(
                f"{out} goes on only where it was begun: its {fact} is "
                f"{known.attributes.get(fact)}, got {fresh.attributes[fact]}; write another file"
            )
    if fresh.links and not known.links:
        known = dataclasses.replace(known, links=fresh.links)
        data = dataclasses.replace(data, devices={**data.devices, device: known})
    return data


def has_point(
    device: DeviceProfile, model: Model, cut: Parallelism, rows: int, context: int
) -> bool:
    """Whether every operator was measured there."""
    for key in {operator_key(op, cut) for op in operator_sequence(model.config)}:
        times = device.operators.get(key)
        if times is None or rows not in times.rows or context not in times.contexts:
            return False
        place = (list(times.rows).index(rows), list(times.contexts).index(context))
        if not np.isfinite(times.time_s[place]).all():
            return False
    return True


def add_point(
    data: ProfileData, device: str, model: Model, rows: int, context: int, point: Point
) -> ProfileData:
    """The profile with one more point.

    The overhead of a stage and the latency of a move are medians over all points.
    """
    known = data.devices[device]
    operators: dict[str, OperatorTimes] = dict(known.operators)
    for key, pair in point.time_s.items():
        new = OperatorTimes(
            name=f"{key.split('-')[0]} of {model.config.name}",
            rows=np.array([rows], dtype=float),
            contexts=np.array([context], dtype=float),
            time_s=np.array([[pair]]),
            spread=np.array([[point.spread[key]]]),
        )
        operators[key] = merge_times(operators.get(key), new)
    overheads: dict[str, Any] = json.loads(known.attributes.get(OVERHEADS, "{}"))
    overheads[f"{model.config.name} {rows} x {context}"] = round(point.stage_overhead_s, 9)
    latencies: dict[str, Any] = json.loads(known.attributes.get(LATENCIES, "{}"))
    links = dict(known.links)
    if point.move_s is not None and IN_PROCESS in links:
        copy_s = point.move_bytes / links[IN_PROCESS].bandwidth_bytes_per_s
        latencies[f"{model.config.name} {rows} x {context}"] = round(point.move_s - copy_s, 9)
        latency_s = max(float(np.median(list(latencies.values()))), 0.0)
        links[IN_PROCESS] = dataclasses.replace(links[IN_PROCESS], latency_s=latency_s)
    models = json.loads(known.attributes.get("models", "{}"))
    models[model.config.name] = model.config.to_dict()
    changed = dataclasses.replace(
        known,
        operators=operators,
        links=links,
        stage_overhead_s=float(np.median(list(overheads.values()))),
        attributes={
            **known.attributes,
            OVERHEADS: json.dumps(overheads),
            LATENCIES: json.dumps(latencies),
            "models": json.dumps(models),
        },
    )
    return dataclasses.replace(data, devices={**data.devices, device: changed})


def only_point(
    data: ProfileData, device: str, model: Model, rows: int, context: int, point: Point
) -> ProfileData:
    """The profile with this point alone, so that the overhead of a stage is the point's own."""
    known = data.devices[device]
    other = {OVERHEADS, LATENCIES, "models"}
    bare = dataclasses.replace(
        known,
        operators={},
        attributes={name: text for name, text in known.attributes.items() if name not in other},
    )
    data = dataclasses.replace(data, devices={**data.devices, device: bare})
    return add_point(data, device, model, rows, context, point)
