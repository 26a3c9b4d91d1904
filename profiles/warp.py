"""Where between two measured points the latency changes: a model's progress, never its scale.

Between neighbouring measured points x0 and x1 with times t0 and t1 we answer

    t(x) = t0 * (t1 / t0) ** w,    w = (p(x) - p(x0)) / (p(x1) - p(x0)),

where the *progress* p is the logarithm of a physical model of the kernel plus a small multiple of
log x. p rises, so t is monotone between t0 and t1, is exact at both ends, and follows the model's
steps: a GEMM costs the same up to the edge of its tile and then jumps, attention is flat until its
traffic leaves the launch cost, and both slow down where a benchmark no longer fits the cache. With
p = log x alone this is plain log-linear interpolation.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from weavejax.profiles.schema import DeviceProfile, Warp
from weavejax.profiles.work import kernel_work

TILES: tuple[tuple[int, int], ...] = (
    (16, 64),
    (32, 64),
    (64, 64),
    (64, 128),
    (128, 64),
    (128, 128),
    (256, 64),
    (128, 256),
    (256, 128),
)
"""Output tiles (rows, columns) that GEMM libraries choose from."""

PLAIN = Warp(floor_s=0.0, bandwidth=1.0, slopes=(1.0, 1.0, 1.0), sharpness=0.0)
"""Plain log-linear interpolation: progress is log x."""


def progress(
    device: DeviceProfile,
    kind: str,
    warp: Warp,
    shape: Sequence[Any],
    sizes: Sequence[Any],
    xp: ModuleType = np,
) -> Any:
    """Logarithm of the kernel's model plus ``slopes`` times the logarithms of its sizes.

    Rises in every size whose slope is positive. ``xp`` is numpy or jax.numpy.
    """
    line = 0.0
    for slope, size in zip(warp.slopes, sizes, strict=False):
        line = line + slope * xp.log(size)
    if warp is PLAIN:
        return line
    if kind == "gemm":
        return line + xp.log(gemm_model_s(device, warp, sizes, xp))
    flop, traffic = kernel_work(kind, shape, sizes, device.element_bytes)
    compute_s = flop / (device.bf16_flop_per_s * warp.flop)
    memory_s = cached_traffic_s(device, warp, kind, traffic, xp)
    return line + xp.log(warp.floor_s + compute_s + memory_s)


def cached_traffic_s(
    device: DeviceProfile, warp: Warp, kind: str, traffic_bytes: Any, xp: ModuleType = np
) -> Any:
    """Seconds of memory traffic that a cache of ``cache_bytes`` serves while it fits.

    Rises in the traffic: the share served cold and the cost of serving it both do.
    """
    bandwidth = (
        device.link_bandwidth_bytes_per_s if kind == "all_reduce" else device.bandwidth_bytes_per_s
    )
    cold_s = traffic_bytes / (bandwidth * warp.bandwidth)
    ratio = xp.minimum(traffic_bytes / warp.cache_bytes, 50.0)
    cold_share = ratio**6 / (1.0 + ratio**6)
    return cold_s * (cold_share + (1.0 - cold_share) / warp.cache_speedup)


def gemm_model_s(
    device: DeviceProfile, warp: Warp, sizes: Sequence[Any], xp: ModuleType = np
) -> Any:
    """GEMM seconds with tile and wave quantisation, up to scale.

    The cheapest tile size decides. Its tiles run in waves over the multiprocessors; ``wave_s`` and
    the tile's attained fraction of peak give the cost of a wave.
    """
    m, n, k = sizes
    ones = (1,) * max(np.ndim(size) for size in sizes)
    rows, columns = (np.array(part, float).reshape(-1, *ones) for part in zip(*TILES, strict=True))
    attained = xp.stack(warp.tiles).reshape(-1, *ones)
    peak = device.bf16_flop_per_s / device.multiprocessors
    tiles = np.ceil(m / rows) * np.ceil(n / columns) / device.multiprocessors
    waves = np.ceil(tiles) ** warp.quantisation * np.maximum(tiles, 1.0) ** (
        1.0 - warp.quantisation
    )
    best = (waves * (2.0 * rows * columns * k / (peak * attained) + warp.wave_s)).min(0)
    _, traffic = kernel_work("gemm", (), sizes, device.element_bytes)
    memory_s = cached_traffic_s(device, warp, "gemm", traffic, xp)
    power = warp.sharpness
    return warp.floor_s + (best**power + memory_s**power) ** (1.0 / power)
