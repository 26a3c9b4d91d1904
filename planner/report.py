"""What a search found, and what it did to be sure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from weavejax.plan import Plan


@dataclass(frozen=True, kw_only=True)
class SearchCounts:
    """Where the candidates of the grid went; the parts add up to ``candidates``.

    A candidate is a template, a global batch, a number of microbatches and one owner point
    (device type, parallelism, replicas) per group.
    """

    candidates: int = 0
    """All of the grid."""
    too_much_memory: int = 0
    """A replica does not fit its devices."""
    dominated: int = 0
    """Another candidate is as good in everything (frontiers and common replica factors)."""
    too_many_devices: int = 0
    """More devices than the limit or the inventory."""
    bound_by_slo: int = 0
    """A lower bound of the round-trip time exceeds the target."""
    bound_by_cost: int = 0
    """A lower bound of the cost exceeds the best plan's."""
    simulated: int = 0
    """Round-trip time computed exactly."""
    missed_slo: int = 0
    """Of the simulated: slower than the target."""

    @property
    def considered(self) -> int:
        """Candidates that fit memory and devices and are not dominated."""
        return self.bound_by_slo + self.bound_by_cost + self.simulated

    @property
    def accounted(self) -> int:
        return (
            self.too_much_memory
            + self.dominated
            + self.too_many_devices
            + self.bound_by_slo
            + self.bound_by_cost
            + self.simulated
        )


@dataclass(frozen=True, kw_only=True)
class SearchReport:
    """The best plan and how the search went."""

    best: Plan | None
    """Cheapest plan; None where an interrupted search had none yet."""
    proven: bool
    """The whole grid was covered. False after an interruption: a better plan may exist."""
    counts: SearchCounts
    alternatives: tuple[Plan, ...] = ()
    """The best of the other simulated plans, one per number of groups and template, in order."""
    seconds: float = 0.0
    """Search time without compilation."""
    compile_s: float = 0.0
    """Compiling the evaluator (or loading it from the cache)."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    policy: str = "weave"


class PolicyError(ValueError):
    """A policy that raises or returns what is no list of templates; the message names it."""


class InfeasiblePlanError(ValueError):
    """No plan of the grid fits; the message says which constraint binds and by how much."""

    def __init__(
        self,
        message: str,
        *,
        constraint: str,
        short_bytes: int | None = None,
        short_s: float | None = None,
        nearest_slo_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.constraint = constraint
        """``templates``, ``grid``, ``memory``, ``devices`` or ``latency``"""
        self.short_bytes = short_bytes
        """Bytes by which the best fitting replica misses its memory."""
        self.short_s = short_s
        """Seconds by which the fastest plan misses the target."""
        self.nearest_slo_s = nearest_slo_s
        """The smallest target some plan meets."""
