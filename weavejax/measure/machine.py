"""The machine a profile is measured on: what it is, and how fast memory, products and moves are."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from weavejax.meshes.cluster import Cluster
from weavejax.meshes.devices import DeviceSpec, Link
from weavejax.profiles.schema import DeviceProfile, LinkFit, ProfileData
from weavejax.runtime.transport import InProcessTransport

IN_PROCESS = "in_process"
"""The link between devices of one process, in :attr:`DeviceProfile.links`."""
BETWEEN_PROCESSES = "between_processes"
"""The link between processes of one machine."""
_MATRIX, _STREAM_BYTES = 1024, 1 << 26
_MOVE_BYTES = (1 << 10, 1 << 14, 1 << 17, 1 << 20)


def pin_cores(cores: Sequence[int]) -> None:
    """Confine this process to some cores. Must come before JAX starts its threads.

    Raises:
        ValueError: a core that the machine does not have or that this process may not use.
    """
    there = os.sched_getaffinity(0)
    if not cores or not set(cores) <= there:
        raise ValueError(f"cores must be some of {sorted(there)}, got {list(cores)}")
    os.sched_setaffinity(0, set(cores))


def describe_device(name: str, device: Any, dtype: str) -> DeviceProfile:
    """A profile without operators: attained bandwidth and FLOP/s, and what was measured on.

    The two rates stand in for a data sheet, so that fitted fractions refer to what the device
    reaches at best.
    """
    cores = len(os.sched_getaffinity(0)) if device.platform == "cpu" else 1
    width = jnp.dtype(dtype).itemsize
    return DeviceProfile(
        device=name,
        bandwidth_bytes_per_s=_bandwidth(device),
        bf16_flop_per_s=_flop_per_s(device, dtype),
        link_bandwidth_bytes_per_s=_bandwidth(device),
        multiprocessors=cores,
        element_bytes=width,
        attributes={
            "date": datetime.date.today().isoformat(),
            "jax": jax.__version__,
            "dtype": dtype,
            "device_kind": device.device_kind,
            "host": platform.machine(),
            "cores": str(cores),
            "memory_bytes": str(_memory_bytes(device)),
        },
    )


def measure_link(devices: Sequence[Any], repeats: int = 30) -> LinkFit:
    """Moves between two devices of this process, as the executor makes them.

    Raises:
        ValueError: fewer than two devices.
    """
    if len(devices) < 2:
        raise ValueError(f"a link needs two devices, got {len(devices)}")
    source, target = (jax.sharding.SingleDeviceSharding(device) for device in devices[:2])
    sizes, times = [], []
    for size in _MOVE_BYTES:
        array = jax.device_put(np.ones((1, 1, size // 4), np.float32), source)
        kind = jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=source)
        move = InProcessTransport().bind([kind], [target])
        sizes.append(float(size))
        times.append(_median_s(lambda move=move, array=array: move([array]), repeats))
    slope, start = np.polyfit(sizes, times, 1, w=1 / np.array(times))
    return LinkFit(
        bandwidth_bytes_per_s=float(1 / max(slope, 1e-12)), latency_s=float(max(start, 1e-7))
    )


def profile_cluster(
    data: ProfileData, names: Iterable[str], count: int = 64, link: str = IN_PROCESS
) -> Cluster:
    """Devices of a measured profile as a cluster, so that plans on them can be predicted.

    Its links are the measured ones of a kind, or the memory's bandwidth without latency.
    """
    specs = profile_devices(data, count, link)
    return Cluster(devices=tuple((specs[name], count) for name in dict.fromkeys(names)))


def profile_devices(
    data: ProfileData, count: int = 64, link: str = IN_PROCESS
) -> dict[str, DeviceSpec]:
    """What is known of the devices that were measured here, at 1 USD per hour."""
    specs = {}
    for name, device in data.devices.items():
        if "memory_bytes" not in device.attributes:
            continue
        fit = device.links.get(
            link,
            LinkFit(bandwidth_bytes_per_s=device.link_bandwidth_bytes_per_s, latency_s=0.0),
        )
        found = Link(bandwidth_bytes_per_s=fit.bandwidth_bytes_per_s, latency_s=fit.latency_s)
        specs[name] = DeviceSpec(
            name=name,
            memory_bytes=float(device.attributes["memory_bytes"]),
            bandwidth_bytes_per_s=device.bandwidth_bytes_per_s,
            bf16_flop_per_s=device.bf16_flop_per_s,
            usd_per_hour=1.0,
            devices_per_node=count,
            intra_node=found,
            inter_node=found,
            source=f"measured {device.attributes.get('date', '')}, at 1 USD per hour",
        )
    return specs


def _bandwidth(device: Any) -> float:
    """Bytes read per second by a sum over an array that no cache of a core holds."""
    array = jax.device_put(np.ones(_STREAM_BYTES // 4, np.float32), device)
    total = jax.jit(jnp.sum)
    return _STREAM_BYTES / _median_s(lambda: [total(array)], 5)


def _flop_per_s(device: Any, dtype: str) -> float:
    matrix = jax.device_put(jnp.ones((_MATRIX, _MATRIX), dtype), device)
    product = jax.jit(jnp.matmul)
    return 2 * _MATRIX**3 / _median_s(lambda: [product(matrix, matrix)], 5)


def _memory_bytes(device: Any) -> int:
    statistics_ = device.memory_stats() if device.platform != "cpu" else None
    if statistics_ and statistics_.get("bytes_limit"):
        return int(statistics_["bytes_limit"])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _median_s(run: Callable[[], Sequence[Any]], repeats: int) -> float:
    jax.block_until_ready(run())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - start)
    return statistics.median(times)
