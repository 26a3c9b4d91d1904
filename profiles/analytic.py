"""The analytic model: latency = max(floor, roofline), a pure formula usable for any device.

Roofline (paper section 3): T = max(D / β, W / F) with the attained fractions of β and F fitted per
kernel kind (:mod:`weavejax.profiles.fit`), and a launch floor under it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weavejax.meshes import DeviceSpec
from weavejax.profiles.schema import DeviceProfile, Efficiency
from weavejax.profiles.work import kernel_work

DEFAULT_EFFICIENCIES: dict[str, Efficiency] = {
    "gemm": Efficiency(floor_s=4e-6, bandwidth=0.65, flop=0.72),
    "attention": Efficiency(floor_s=12e-6, bandwidth=0.85, flop=0.5),
    "experts": Efficiency(floor_s=40e-6, bandwidth=0.65, flop=0.22),
    "delta_net": Efficiency(floor_s=7e-6, bandwidth=0.87, flop=0.5),
    "all_reduce": Efficiency(floor_s=5e-6, bandwidth=0.6, flop=1.0),
    "elementwise": Efficiency(floor_s=0.0, bandwidth=0.8, flop=1.0),
}
"""For devices nobody measured: about the medians of the fits to the five measured ones.

``attention`` has the bandwidth of large caches (0.74 to 0.93 of peak), where a planner works; the
fits, over all sizes, are lower. ``elementwise`` has no floor: engines fuse norms, rotary embeddings
and residuals into neighbouring kernels, so only their traffic is charged.
"""


def analytic_time_s(
    device: DeviceProfile, kind: str, shape: Sequence[Any], sizes: Sequence[Any]
) -> Any:
    """Roofline seconds of one kernel launch, for numbers or arrays of sizes.

    Examples:
        >>> from weavejax.meshes import device_spec
        >>> h20 = analytic_device(device_spec("h20"))
        >>> bool(analytic_time_s(h20, "gemm", (), (1, 4096, 4096)) > 1e-5)
        True
    """
    flop, traffic = kernel_work(kind, shape, sizes, device.element_bytes)
    return roofline_s(device, kind, flop, traffic)


def roofline_s(device: DeviceProfile, kind: str, flop: Any, traffic_bytes: Any) -> Any:
    """max(floor, bytes / attained bandwidth, FLOPs / attained FLOP/s)."""
    efficiency = device.efficiencies.get(kind, DEFAULT_EFFICIENCIES[kind])
    bandwidth = (
        device.link_bandwidth_bytes_per_s if kind == "all_reduce" else device.bandwidth_bytes_per_s
    )
    memory_s = traffic_bytes / (bandwidth * efficiency.bandwidth)
    compute_s = flop / (device.bf16_flop_per_s * efficiency.flop)
    return np.maximum(efficiency.floor_s, np.maximum(memory_s, compute_s))


def analytic_device(spec: DeviceSpec) -> DeviceProfile:
    """A profile of a device that was never measured: the data sheet and default efficiencies."""
    return DeviceProfile(
        device=spec.name,
        bandwidth_bytes_per_s=spec.bandwidth_bytes_per_s,
        bf16_flop_per_s=spec.bf16_flop_per_s,
        link_bandwidth_bytes_per_s=spec.intra_node.bandwidth_bytes_per_s,
        multiprocessors=1,
        efficiencies=DEFAULT_EFFICIENCIES,
    )
