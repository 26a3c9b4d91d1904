"""How workers are started, watched and restarted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

MoveKind = Literal["sockets", "device"]


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Of an engine whose device groups are processes.

    Raises:
        ValueError: a value out of range; the message names it.
    """

    interface: str = "127.0.0.1"
    """Address of this host that the coordinator listens on; loopback serves one machine only."""
    failure_timeout_s: float = 10.0
    """Silence or standstill after which a worker counts as failed; a slow stage must be shorter."""
    start_timeout_s: float = 600.0
    """For starting a worker, reading its weights and compiling its programs."""
    restarts: int = 3
    """How often workers are started again before requests end with the failure."""
    platform: str | None = None
    """JAX platform of the workers; by default ``cpu`` for groups on ``cpu``, else JAX's choice."""

    moves: MoveKind = "sockets"
    """How rows travel: ``sockets``, through host memory, or ``device``, by
    ``jax.experimental.transfer`` where replicas are single devices and a probe at start succeeds on
    every worker, else by sockets all the same."""

    def __post_init__(self) -> None:
        for name in ("failure_timeout_s", "start_timeout_s"):
            value = getattr(self, name)
            if not math.isfinite(value) or value <= 0:
                raise ValueError(f"{name} must be a positive number of seconds, got {value!r}")
        if self.moves not in get_args(MoveKind):
            kinds = " or ".join(get_args(MoveKind))
            raise ValueError(f"moves must be {kinds}, got {self.moves!r}")
        if not isinstance(self.restarts, int) or self.restarts < 0:
            raise ValueError(f"restarts must be a whole number >= 0, got {self.restarts!r}")

    @property
    def beat_s(self) -> float:
        """Between two questions of the coordinator to every worker."""
        return min(0.5, self.failure_timeout_s / 4)

    @property
    def silence_s(self) -> float:
        """After which a worker that hears nothing of its coordinator ends itself."""
        return max(10.0, 3 * self.failure_timeout_s)
