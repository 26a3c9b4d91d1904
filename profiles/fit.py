"""Fits the analytic and the warp parameters of a device to its measured tables, with optax.

The only module of the package that imports JAX.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from weavejax.profiles.analytic import DEFAULT_EFFICIENCIES, analytic_time_s
from weavejax.profiles.schema import DeviceProfile, Efficiency, KernelTable, Warp
from weavejax.profiles.warp import TILES, progress
from weavejax.profiles.work import kernel_work

Parameters = dict[str, Any]
_STEPS = 200
_LEARNING_RATE = 0.05
_BLENDS = (1.0, 2.0, 4.0, 8.0, 16.0, 64.0)


def fit_device(device: DeviceProfile) -> DeviceProfile:
    """The device with an :class:`Efficiency` and a :class:`Warp` fitted for every table."""
    efficiencies = {
        kind: fit_efficiency(device, table) for kind, table in sorted(device.tables.items())
    }
    warps = {kind: fit_warp(device, table) for kind, table in sorted(device.tables.items())}
    return dataclasses.replace(device, efficiencies=efficiencies, warps=warps)


def fit_efficiency(device: DeviceProfile, table: KernelTable) -> Efficiency:
    """Floor and attained fractions that minimise the mean absolute log error of the roofline.

    Fractions may exceed one where a benchmark runs from cache; they are capped at 1.
    """
    shape, sizes, time_s = _points(table)
    flop, traffic = (
        np.broadcast_to(part, time_s.shape)
        for part in kernel_work(table.kind, shape, sizes, device.element_bytes)
    )
    link = table.kind == "all_reduce"
    bandwidth = device.link_bandwidth_bytes_per_s if link else device.bandwidth_bytes_per_s
    scale = jnp.log(
        jnp.asarray(np.stack([traffic / bandwidth, flop / device.bf16_flop_per_s]) + 1e-30)
    )
    target = jnp.log(jnp.asarray(time_s))
    start = DEFAULT_EFFICIENCIES[table.kind]

    def loss(values: Parameters, _: jax.Array) -> jax.Array:
        memory = scale[0] - jax.nn.log_sigmoid(values["bandwidth"])
        compute = scale[1] - jax.nn.log_sigmoid(values["flop"])
        model = jnp.maximum(values["floor"], jnp.maximum(memory, compute))
        return jnp.abs(model - target).mean()

    values = _minimiser(loss)(
        {
            "floor": jnp.log(start.floor_s),
            "bandwidth": _logit(start.bandwidth),
            "flop": _logit(min(start.flop, 0.9)),
        },
        0.0,
    )
    return Efficiency(
        floor_s=float(jnp.exp(values["floor"])),
        bandwidth=float(jax.nn.sigmoid(values["bandwidth"])),
        flop=float(jax.nn.sigmoid(values["flop"])),
    )


def residuals(device: DeviceProfile) -> dict[str, tuple[float, float]]:
    """Per kernel kind: median and 95th percentile of |analytic / measured - 1|."""
    out = {}
    for kind, table in sorted(device.tables.items()):
        shape, sizes, time_s = _points(table)
        error = np.abs(analytic_time_s(device, kind, shape, sizes) / time_s - 1)
        out[kind] = (float(np.median(error)), float(np.percentile(error, 95)))
    return out


def fit_warp(device: DeviceProfile, table: KernelTable, *, triples: int = 4000) -> Warp:
    """The warp that best predicts measured points from their two neighbours.

    Minimises the mean absolute log error over random triples of neighbouring points of every
    axis: first with the model's own error beside it, so that it becomes physical, then nearly
    without. A dozen parameters meet tens of thousands of points, and are the same for all lines.
    Each start's result is then blended with as much of the plain log-linear line, per axis, as it
    takes to beat plain interpolation on both the median and the 95th percentile; the best is kept.
    """
    data = [_triples(table, axis, triples) for axis in range(len(table.points))]

    def misses(warp: Warp) -> list[tuple[jax.Array, jax.Array]]:
        """Per axis: log error of the prediction and log error of the model."""
        out = []
        for shape, sizes, logs in data:
            marks = [progress(device, table.kind, warp, shape, at, jnp) for at in sizes]
            weight = (marks[1] - marks[0]) / (marks[2] - marks[0])
            line = sum(s * jnp.log(x) for s, x in zip(warp.slopes, sizes[1], strict=True))
            out.append(
                (logs[0] + (logs[2] - logs[0]) * weight - logs[1], marks[1] - line - logs[1])
            )
        return out

    def loss(values: Parameters, physical: jax.Array) -> jax.Array:
        total = jnp.zeros(())
        for miss, scale in misses(_warp(table.kind, values)):
            total = total + jnp.abs(miss).mean() + physical * jnp.abs(scale).mean()
        return total

    def score(warp: Warp) -> np.ndarray:
        """Per axis: median x p95 over plain's; heavy where either is no better than plain."""
        scores = []
        for axis, (miss, _) in enumerate(misses(warp)):
            _, sizes, logs = data[axis]
            x = [np.log(at[axis]) for at in sizes]
            weight = (x[1] - x[0]) / (x[2] - x[0])
            theirs = np.abs(np.expm1(logs[0] + (logs[2] - logs[0]) * weight - logs[1]))
            ours = np.abs(np.expm1(np.asarray(miss)))
            ratio = [np.percentile(ours, q) / np.percentile(theirs, q) for q in (50, 95)]
            scores.append(ratio[0] * ratio[1] + 100.0 * max(0.0, max(ratio) - 0.98))
        return np.array(scores)

    with jax.enable_x64(True):
        best, best_score = None, np.inf
        minimise = _minimiser(loss)
        for start in _starts(table):
            for warp in _milder(_warp(table.kind, minimise(minimise(start, 1.0), 0.02))):
                # a slope only acts along its own axis, so each is blended by itself
                scores = np.stack([score(_blended(warp, [f] * len(data))) for f in _BLENDS])
                if scores.min(0).sum() < best_score:
                    best_score = float(scores.min(0).sum())
                    best = _blended(warp, [_BLENDS[i] for i in scores.argmin(0)])
    assert best is not None, "there is always a start"
    return _plain_floats(best)


def _milder(warp: Warp) -> list[Warp]:
    """The warp, and with less of the cache: the mean error overvalues the few points it helps."""
    gain = warp.cache_speedup - 1.0
    return [dataclasses.replace(warp, cache_speedup=1.0 + part * gain) for part in (1.0, 0.4, 0.15)]


def _blended(warp: Warp, factors: Sequence[float]) -> Warp:
    slopes = zip(factors, warp.slopes, strict=True)
    return dataclasses.replace(warp, slopes=tuple(factor * slope for factor, slope in slopes))


def _starts(table: KernelTable) -> list[Parameters]:
    """With and without a cache; a GEMM's tables have hardly any of its effect."""
    speedups = (0.05,) if table.kind == "gemm" else (0.05, 2.0)
    return [_start(table, slope=0.05, speedup=speedup) for speedup in speedups]


def _start(table: KernelTable, *, slope: float, speedup: float) -> Parameters:
    values: Parameters = {
        "floor": jnp.log(float(np.nanmin(table.time_s)) * 0.8),
        "bandwidth": _logit(0.8),
        "flop": _logit(0.7),
        "cache": jnp.log(60e6 if table.kind != "all_reduce" else 4e6),
        "speedup": jnp.log(speedup),
        "slopes": jnp.full(len(table.points), np.log(slope)),
    }
    if table.kind == "gemm":
        area = np.array([rows * columns for rows, columns in TILES])
        values |= {
            "tiles": _logit(np.clip(0.2 * area / 8192, 0.02, 0.7)),
            "wave": jnp.log(1e-6),
            "quantisation": _logit(0.5),
            "sharpness": jnp.log(1.5),
        }
    return values


def _warp(kind: str, values: Parameters) -> Warp:
    """Constrained parameters: positive, fractions below one, slopes above zero."""
    fields: Parameters = {
        "floor_s": jnp.exp(values["floor"]),
        "bandwidth": jax.nn.sigmoid(values["bandwidth"]),
        "flop": jax.nn.sigmoid(values["flop"]),
        "cache_bytes": jnp.exp(values["cache"]),
        "cache_speedup": 1.0 + jnp.exp(values["speedup"]),
        "slopes": tuple(0.003 + jnp.exp(slope) for slope in values["slopes"]),
    }
    if kind == "gemm":
        fields |= {
            "tiles": tuple(jax.nn.sigmoid(tile) for tile in values["tiles"]),
            "wave_s": jnp.exp(values["wave"]),
            "quantisation": jax.nn.sigmoid(values["quantisation"]),
            "sharpness": 1.0 + jnp.exp(values["sharpness"]),
        }
    return Warp(**fields)


def _plain_floats(warp: Warp) -> Warp:
    """Six significant digits are plenty, and keep the file diffable."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(plain, value))
        return float(f"{float(value):.6g}")

    return Warp(**{f.name: plain(getattr(warp, f.name)) for f in dataclasses.fields(warp)})


def _minimiser(
    loss: Callable[[Parameters, jax.Array], jax.Array],
) -> Callable[[Parameters, float], Parameters]:
    """Compiles the descent of ``loss(values, weight)`` once, for many starts and weights."""
    optimiser = optax.adam(optax.cosine_decay_schedule(_LEARNING_RATE, _STEPS))

    @jax.jit
    def descend(values: Parameters, weight: jax.Array) -> Parameters:
        def step(_: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            values, state = carry
            updates, state = optimiser.update(jax.grad(loss)(values, weight), state)
            return optax.apply_updates(values, updates), state

        return jax.lax.fori_loop(0, _STEPS, step, (values, optimiser.init(values)))[0]

    def minimise(values: Parameters, weight: float) -> Parameters:
        # optax mixes its step counter with floats, which strict promotion forbids
        with jax.numpy_dtype_promotion("standard"):
            return descend(values, jnp.asarray(weight))

    return minimise


def _points(table: KernelTable) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Every measured point: (columns of its shape, columns of its sizes, seconds)."""
    where = np.nonzero(np.isfinite(table.time_s))
    shape = [table.shapes[where[0], column] for column in range(table.shapes.shape[1])]
    sizes = [line[index] for line, index in zip(table.points, where[1:], strict=True)]
    return shape, sizes, table.time_s[where].astype(float)


def _triples(
    table: KernelTable, axis: int, count: int
) -> tuple[list[np.ndarray], list[list[np.ndarray]], list[np.ndarray]]:
    """Random neighbouring triples along one axis: shapes, sizes of each, log seconds of each."""
    along = np.moveaxis(table.time_s, 1 + axis, -1)
    known = np.isfinite(along)
    where = np.argwhere(known[..., :-2] & known[..., 1:-1] & known[..., 2:])
    where = np.random.default_rng(0).permutation(where)[:count]
    shape = [table.shapes[where[:, 0], column] for column in range(table.shapes.shape[1])]
    others = [a for a in range(len(table.points)) if a != axis]
    sizes, logs = [], []
    for offset in range(3):
        at: list[Any] = [None] * len(table.points)
        for column, other in enumerate(others):
            at[other] = table.points[other][where[:, 1 + column]]
        at[axis] = table.points[axis][where[:, -1] + offset]
        sizes.append(at)
        index = (*where[:, :-1].T, where[:, -1] + offset)
        logs.append(np.log(along[index].astype(float)))
    return shape, sizes, logs


def _logit(value: Any) -> Any:
    return jnp.log(jnp.asarray(value) / (1.0 - jnp.asarray(value)))


def summary(device: DeviceProfile) -> Mapping[str, str]:
    """One line per fitted kernel kind: parameters and residuals, for people."""
    errors = residuals(device)
    return {
        kind: f"floor {e.floor_s * 1e6:.1f} us, bandwidth {e.bandwidth:.2f}, FLOP {e.flop:.2f}; "
        f"median error {errors[kind][0]:.0%}, p95 {errors[kind][1]:.0%}"
        for kind, e in sorted(device.efficiencies.items())
        if kind in errors
    }
