"""The finite grid a search is exact over."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from weavejax.plan import Template
from weavejax.plan_reading import PlanError, keep_whole_numbers, whole_number

COUNTS = (
    "max_devices",
    "min_groups",
    "max_groups",
    "max_replicas",
    "max_microbatches",
    "max_batch",
)


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
        keep_whole_numbers(self, *COUNTS)
        for name in ("expert_parallel", "attention_data_parallel", "offsets"):
            object.__setattr__(self, name, bool(getattr(self, name)))
        if self.min_groups > self.max_groups:
            raise ValueError(
                f"min_groups must not exceed max_groups={self.max_groups}, got {self.min_groups}"
            )
        batches = tuple(self.batches) or batch_grid(self.max_batch)
        object.__setattr__(self, "batches", _sizes("batches", batches))
        object.__setattr__(self, "tensor_parallel", _sizes("tensor_parallel", self.tensor_parallel))
        if self.sub_blocks is not None:
            object.__setattr__(self, "sub_blocks", _sizes("sub_blocks", self.sub_blocks))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as plans and reports carry it; batches only where they are no whole grid."""
        data: dict[str, Any] = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self)
        }
        if self.batches == batch_grid(self.max_batch):
            del data["batches"]
        return {
            name: list(value) if isinstance(value, tuple) else value for name, value in data.items()
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SearchLimits:
        """Read what :meth:`to_dict` wrote; what is left out is as by default.

        Raises:
            ValueError: a limit this version does not know, or one that leaves nothing to search.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(data) - set(known))
        if unknown:
            raise ValueError(f"search limits have no {', '.join(unknown)}; they have {known}")
        return cls(**data)

    def describe(self) -> str:
        """The limits that are not the default ones, in one line.

        Examples:
            >>> SearchLimits(max_devices=8, offsets=False).describe()
            'max_devices=8, offsets=False'
            >>> SearchLimits().describe()
            'the default ones'
        """
        default, mine = SearchLimits().to_dict(), self.to_dict()
        changed = [f"{name}={value}" for name, value in mine.items() if default.get(name) != value]
        return ", ".join(changed) or "the default ones"


def left_out(template: Template, groups: int, limits: SearchLimits) -> str:
    """Why the limits leave out a template of K groups; empty where they do not.

    Examples:
        >>> left_out(Template(cuts=(1,), offset=1), 2, SearchLimits(offsets=False))
        'starts at offset 1: allow offsets (on the command line: without --no-offsets)'
    """
    if template.offset and not limits.offsets:
        return (
            f"starts at offset {template.offset}: allow offsets (on the command line: without "
            "--no-offsets)"
        )
    if limits.sub_blocks is not None and groups > 1 and template.layers not in limits.sub_blocks:
        return (
            f"spans {template.layers} layers: let sub_blocks={limits.sub_blocks} hold "
            f"{template.layers}"
        )
    return ""


def _sizes(name: str, values: Iterable[int]) -> tuple[int, ...]:
    """Distinct whole numbers of at least 1, rising."""
    got = tuple(values) if isinstance(values, Iterable) else values
    try:
        sizes = {whole_number(name, value) for value in got}
    except (PlanError, TypeError):
        sizes = set()
    if not sizes:
        raise ValueError(f"{name} needs whole numbers of at least 1, got {got}")
    return tuple(sorted(sizes))
