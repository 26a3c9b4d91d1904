"""The two latencies the OpWeave paper states, beside what the shipped profile says.

The paper: Qwen3-Next-80B-A3B on one H100 at 128K context and batch 1; a full-attention module
takes 700 us, a linear-attention module 58 us.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from weavejax.models.costs import operator_bytes
from weavejax.models.presets import preset_config
from weavejax.models.sequence import operator_sequence
from weavejax.plan import DeviceGroup
from weavejax.profiles.estimator import KernelEstimate, Profile, load_profile

PAPER_MODULE_S = {"full": 700e-6, "linear": 58e-6}
_MODULE = ("attn_in", "attn_core", "attn_out")


@dataclass(frozen=True, kw_only=True)
class PaperPoint:
    """One attention module: projections, core and output projection."""

    attention: str
    paper_s: float
    predicted_s: float
    traffic_floor_s: float
    """weights and cache over the data sheet's bandwidth: no kernel can be faster"""
    kernels: tuple[KernelEstimate, ...]


def paper_points(profile: Profile | None = None) -> tuple[PaperPoint, ...]:
    """The prediction of both points with its breakdown.

    Examples:
        >>> [point.attention for point in paper_points()]
        ['full', 'linear']
    """
    profile = profile or load_profile()
    group = DeviceGroup(device="h100-sxm", resident_batch=1)
    context = 131_072
    bandwidth = profile.lookup(group.device).device.bandwidth_bytes_per_s
    operators = operator_sequence(preset_config("qwen3-next-80b-a3b"))
    points = []
    for attention, paper_s in PAPER_MODULE_S.items():
        layer = next(
            o.layer for o in operators if o.layer_kind and o.layer_kind.attention == attention
        )
        module = [o for o in operators if o.layer == layer and o.kind in _MODULE]
        kernels = tuple(
            kernel
            for operator in module
            for kernel in profile.operator_breakdown(operator, group, 1, context)
        )
        points.append(
            PaperPoint(
                attention=attention,
                paper_s=paper_s,
                predicted_s=sum(kernel.time_s for kernel in kernels),
                traffic_floor_s=sum(operator_bytes(o, 1, context) for o in module) / bandwidth,
                kernels=kernels,
            )
        )
    return tuple(points)


def format_points(points: tuple[PaperPoint, ...]) -> str:
    """A small table, times in microseconds."""
    lines = []
    for point in points:
        lines.append(
            f"{point.attention + ' attention module':<24} paper {point.paper_s * 1e6:5.0f} us   "
            f"profile {point.predicted_s * 1e6:6.1f} us   "
            f"data-sheet floor {point.traffic_floor_s * 1e6:5.1f} us"
        )
        lines += [
            f"    {kernel.kernel:<16} {kernel.time_s * 1e6:8.2f} us  {kernel.source}"
            for kernel in point.kernels
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(format_points(paper_points()))
    sys.exit(0)
