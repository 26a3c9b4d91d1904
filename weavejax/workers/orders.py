"""What the coordinator tells a worker's process before anything else: plain data, JSON-able."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from weavejax.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Orders:
    """Everything one worker needs to find its place."""

    name: str
    """``group.replica``."""
    coordinator: tuple[str, int]
    secret: str
    """Hexadecimal; of this session alone."""
    interface: str
    """Address of this worker's host to listen on."""
    plan: dict[str, Any]
    model: dict[str, Any]
    dtype: str | None
    chunks: tuple[int, ...]
    platform: str | None
    """JAX platform; ``None`` is JAX's choice."""
    cores: tuple[int, ...] | None
    """CPU cores to stay on; ``None`` leaves the process where it is."""
    moves: str
    """``sockets`` or ``device``: :mod:`weavejax.workers.moves`."""
    silence_s: float
    """Without a word from the coordinator for so long, the worker ends itself."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Orders:
        host, port = data["coordinator"]
        cores = data["cores"]
        return cls(
            **{
                **data,
                "coordinator": (host, port),
                "chunks": tuple(data["chunks"]),
                "cores": None if cores is None else tuple(cores),
            }
        )

    def read_plan(self) -> Plan:
        return Plan.from_dict(self.plan)
