"""What a profile is: measured kernel latencies and fitted parameters as plain, frozen data.

A :class:`KernelTable` holds one kernel kind over a grid of sizes, for as many fixed shapes as
were measured. A :class:`DeviceProfile` is the tables of one device type with the parameters fitted
to them; :class:`ProfileData` maps device names to those. Operators timed whole
are :mod:`weavejax.profiles.operator_times`.
Reading and writing is :mod:`weavejax.profiles.files`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

import numpy as np

from weavejax.profiles.operator_times import OperatorTimes

Source = Literal["measured", "derived", "analytic"]
SOURCES: tuple[Source, ...] = ("measured", "derived", "analytic")
"""From strongest to weakest; the position is the code used in arrays."""
MEASURED, DERIVED, ANALYTIC = range(3)

KernelKind = Literal["gemm", "attention", "experts", "delta_net", "all_reduce"]
KERNEL_AXES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = MappingProxyType(
    {
        "gemm": ((), ("m", "n", "k")),
        "attention": (("q_heads", "kv_heads", "head_dim", "window"), ("batch", "context")),
        "experts": (
            (
                "hidden",
                "intermediate",
                "top_k",
                "num_experts",
                "tensor_parallel",
                "expert_parallel",
            ),
            ("tokens",),
        ),
        "delta_net": (("key_heads", "value_heads", "key_dim", "value_dim"), ("batch",)),
        "all_reduce": (("ranks",), ("elements",)),
    }
)
"""Kernel kind → (names of the fixed dimensions of a shape, names of the grid axes).

Sizes are per rank, except ``tokens`` of ``experts``: those of the whole group, and its
``hidden``, ``intermediate`` and ``num_experts``, which are the model's. ``window`` 0 is full
attention.
"""


@dataclass(frozen=True)
class Estimate:
    """A latency and what it rests on.

    ``measured``: interpolated between measured points. ``derived``: a measured value scaled or
    mapped by a stated rule. ``analytic``: the roofline alone.
    """

    time_s: float
    source: Source


@dataclass(frozen=True, kw_only=True, eq=False)
class KernelTable:
    """One kernel kind measured over a grid of sizes for several fixed shapes.

    Raises:
        ValueError: axes of another kernel kind, points that do not rise, a time array of another
            shape, or a time that is not positive.

    Examples:
        >>> table = KernelTable(
        ...     kind="all_reduce", shapes=np.array([[2]]), points=(np.array([128.0, 256.0]),),
        ...     time_s=np.array([[3e-6, 4e-6]]), dtype="bfloat16", origin="example")
        >>> table.shape_index(2), table.shape_index(4)
        (0, None)
    """

    kind: str
    shapes: np.ndarray
    """(shapes, fixed dimensions) integers; names in :data:`KERNEL_AXES`"""
    points: tuple[np.ndarray, ...]
    """one rising array of sizes per axis"""
    time_s: np.ndarray
    """(shapes, *axes) seconds; NaN where nothing was measured"""
    dtype: str
    origin: str
    """framework, version and kernel the numbers come from"""
    spread: np.ndarray | None = None
    """(shapes, *axes) relative spread of the repetitions (interquartile range / median), or None
    where the source gives medians only"""

    def __post_init__(self) -> None:
        if self.kind not in KERNEL_AXES:
            raise ValueError(
                f"a kernel table is one of {', '.join(KERNEL_AXES)}, got {self.kind!r}"
            )
        fixed, axes = KERNEL_AXES[self.kind]
        want = (len(self.shapes), *(len(line) for line in self.points))
        if self.shapes.ndim != 2 or self.shapes.shape[1] != len(fixed):
            raise ValueError(
                f"{self.kind} shapes have {len(fixed)} columns {fixed}, got {self.shapes.shape}"
            )
        if len(self.points) != len(axes) or self.time_s.shape != want:
            raise ValueError(
                f"{self.kind} times have shape (shapes, {', '.join(axes)}) = {want}, "
                f"got {self.time_s.shape}"
            )
        for name, line in zip(axes, self.points, strict=True):
            if line.ndim != 1 or not (np.diff(line) > 0).all() or line[0] <= 0:
                raise ValueError(
                    f"points of {self.kind} axis {name} must be positive and rise, got {line}"
                )
        bad = ~np.isnan(self.time_s) & ~(np.isfinite(self.time_s) & (self.time_s > 0))
        if bad.any():
            raise ValueError(
                f"{self.kind} times must be positive seconds, got {self.time_s[bad][0]} at "
                f"position {np.argwhere(bad)[0].tolist()}"
            )

    @functools.cached_property
    def _index(self) -> dict[tuple[int, ...], int]:
        return {tuple(map(int, row)): i for i, row in enumerate(self.shapes)}

    def shape_index(self, *shape: int) -> int | None:
        """Row of a fixed shape, or None where it was not measured."""
        return self._index.get(shape)


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """Roofline parameters of one kernel kind on one device: latency = max(floor, roofline).

    ``bandwidth`` and ``flop`` are the attained fractions of the data sheet's bandwidth and
    bfloat16 FLOP/s; for ``all_reduce`` ``bandwidth`` is of the link.
    """

    floor_s: float
    bandwidth: float
    flop: float


@dataclass(frozen=True, kw_only=True)
class Warp:
    """Shape of a kernel's latency between two measured points (:mod:`.warp`).

    Only the *relative* progress of this curve between neighbouring points is used, so its scale
    is free.
    """

    floor_s: float
    """launch cost added to everything"""
    bandwidth: float
    """attained fraction of memory bandwidth"""
    flop: float = 1.0
    """attained fraction of FLOP/s"""
    cache_bytes: float = 1.0
    """traffic up to about this size is served by the last-level cache (a benchmark repeats it)"""
    cache_speedup: float = 1.0
    """how much faster than device memory that cache is"""
    slopes: tuple[float, ...] = ()
    """per grid axis, the plain log-linear part: 0 leaves everything to the model"""
    tiles: tuple[float, ...] = ()
    """GEMM: attained fraction of peak of each tile size of :data:`.warp.TILES`"""
    wave_s: float = 0.0
    """GEMM: fixed cost of one wave of tiles"""
    quantisation: float = 0.0
    """GEMM: 1 rounds waves up, 0 does not"""
    sharpness: float = 2.0
    """GEMM: exponent with which compute and traffic combine; infinity is their maximum"""


@dataclass(frozen=True, kw_only=True)
class LinkFit:
    """A point-to-point link fitted from measured sends: latency + bytes / bandwidth."""

    bandwidth_bytes_per_s: float
    latency_s: float
    busy_s: float = 0.0
    """of the latency, what keeps the compute of each end from its stages"""


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceProfile:
    """Everything known about one device type."""

    device: str
    """its name in :mod:`weavejax.meshes`: ``h100-sxm``"""
    bandwidth_bytes_per_s: float
    """data-sheet memory bandwidth the fractions above refer to"""
    bf16_flop_per_s: float
    link_bandwidth_bytes_per_s: float
    """data-sheet bandwidth inside a node, per device and direction"""
    multiprocessors: int
    """units that one wave of GEMM tiles fills"""
    element_bytes: int = 2
    """bytes of one weight or activation as measured"""
    tables: Mapping[str, KernelTable] = field(default_factory=dict)
    efficiencies: Mapping[str, Efficiency] = field(default_factory=dict)
    warps: Mapping[str, Warp] = field(default_factory=dict)
    links: Mapping[str, LinkFit] = field(default_factory=dict)
    """``intra_node`` and ``inter_node``, where they were measured"""
    operators: Mapping[str, OperatorTimes] = field(default_factory=dict)
    """operators timed whole, by :func:`weavejax.profiles.operator_key.operator_key`"""
    stage_overhead_s: float = 0.0
    """fixed seconds of every execution of a stage; the times of ``operators`` hold it once each,
    since each was a stage of its own"""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """free text about the measurement: date, jax version, device kind, driver"""


@dataclass(frozen=True, kw_only=True, eq=False)
class ProfileData:
    """Named device profiles, with attribution."""

    name: str
    devices: Mapping[str, DeviceProfile]
    attribution: str = ""
