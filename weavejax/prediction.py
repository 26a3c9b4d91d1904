"""What a plan promises: plain data that the planner writes and the runtime is held against."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Source = Literal["measured", "derived", "analytic"]


@dataclass(frozen=True, kw_only=True)
class StagePrediction:
    """One stage occurrence of one microbatch."""

    occurrence: int
    group: int
    operators: str
    """First and last operator, ``layers.0.attn_in..layers.0.attn_out``."""
    time_s: float
    source: Source
    """The weakest source among its operators' times."""
    measured_fraction: float = 0.0
    """Part of ``time_s`` that rests on measurement."""


@dataclass(frozen=True, kw_only=True)
class MovePrediction:
    """The move over the boundary after ``occurrence``, for one microbatch."""

    occurrence: int
    source_group: int
    destination_group: int
    bytes_per_row: int
    time_s: float
    source: Source


@dataclass(frozen=True, kw_only=True)
class GroupPrediction:
    """Memory and use of one replica of a group."""

    weight_bytes: int
    cache_bytes: int
    buffer_bytes: int
    reserve_bytes: int
    memory_bytes: int
    """What the replica has."""
    busy_fraction: float
    """Compute time over the round-trip time."""

    @property
    def needed_bytes(self) -> int:
        return self.weight_bytes + self.cache_bytes + self.buffer_bytes + self.reserve_bytes


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Seconds, dollars and bytes of a plan in steady state."""

    round_trip_time_s: float
    usd_per_million_tokens: float | None
    """``None`` where a device has no price."""
    occupancy: float
    """Price-weighted mean of the groups' busy fractions."""
    internode_bytes_per_token: float
    groups: tuple[GroupPrediction, ...]
    stages: tuple[StagePrediction, ...]
    moves: tuple[MovePrediction, ...]

    def tokens_per_s(self, batch: int) -> float:
        """Output tokens per second of all slots."""
        return batch / self.round_trip_time_s

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Prediction:
        values = dict(data)
        values["groups"] = tuple(GroupPrediction(**group) for group in data["groups"])
        values["stages"] = tuple(StagePrediction(**stage) for stage in data["stages"])
        values["moves"] = tuple(MovePrediction(**move) for move in data["moves"])
        return cls(**values)
