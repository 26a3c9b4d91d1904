"""The finite grid a search is exact over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


def batch_grid(max_batch: int) -> tuple[int, ...]:
    """Global batches 2^k times 1, 1 1/4, 1 1/2 and 1 3/4, whole numbers up to ``max_batch``.

    Examples:
        >>> batch_grid(16)
        (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
    """
    sizes = set()
    power = 1
    while power <= max_batch:
        sizes |= {power * q // 4 for q in (4, 5, 6, 7) if power * q % 4 == 0}
        power *= 2
    return tuple(sorted(size for size in sizes if size <= max_batch))


@dataclass(frozen=True, kw_only=True)
class SearchLimits:
    """What a search may use; every bound is inclusive.

    The defaults are the paper's (section 7) with offsets and data-parallel attention added.

    Raises:
        ValueError: a limit that leaves nothing to search.

    Examples:
        >>> SearchLimits(max_batch=4).batches
        (1, 2, 3, 4)
    """

    tensor_parallel: tuple[int, ...] = (1, 2, 4, 8)
    """Devices of one replica; those above a node's devices are left out."""
    expert_parallel: bool = True
    """Also try cutting experts over the devices, for models that have experts."""
    attention_data_parallel: bool = True
    """Also try cutting rows instead of heads for the attention operators."""
    max_devices: int = 32
    """Devices of all groups together; the cluster's inventory binds as well."""
    min_groups: int = 1
    max_groups: int = 3
    """Device groups of a plan (K)."""
    max_replicas: int = 4
    """Replicas of one group."""
    max_microbatches: int = 4
    max_batch: int = 8192
    """Largest global resident batch; the grid is :func:`batch_grid`."""
    batches: tuple[int, ...] = ()
    """Global batches to try; filled from ``max_batch`` when empty."""
    sub_blocks: tuple[int, ...] | None = None
    """Layers of the sub-blocks to cut; ``None`` is every divisor of the partition block."""
    offsets: bool = True
    """Templates may start off a layer boundary (CAD does); False is the paper's space."""

    def __post_init__(self) -> None:
        counts = ("max_devices", "min_groups", "max_groups", "max_replicas", "max_microbatches")
        for name in (*counts, "max_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.min_groups > self.max_groups:
            raise ValueError(
                f"min_groups must not exceed max_groups={self.max_groups}, got {self.min_groups}"
            )
        batches = self.batches or batch_grid(self.max_batch)
        for name, values in (("tensor_parallel", self.tensor_parallel), ("batches", batches)):
            if not values or min(values) < 1:
                raise ValueError(f"{name} needs whole numbers of at least 1, got {values}")
        object.__setattr__(self, "batches", tuple(sorted(set(batches))))
        object.__setattr__(self, "tensor_parallel", tuple(sorted(set(self.tensor_parallel))))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for reports."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}
