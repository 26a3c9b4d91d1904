"""What a worker says of itself when asked: how far it is and what it waits for. Plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

State = Literal["starting", "idle", "running", "waiting"]


class At(NamedTuple):
    """What changes with every action: the fields of :class:`Report` of these names."""

    state: State
    stage: int | None = None
    microbatch: int | None = None
    boundary: int | None = None
    peer: str | None = None


@dataclass(frozen=True, kw_only=True)
class Report:
    """One worker at one moment.

    ``stage`` is the stage occurrence it runs or ran last, ``boundary`` the one it waits for.
    """

    state: State = "starting"
    sequence: int = 0
    """Number of the pass (prefill or decode) it works on."""
    stage: int | None = None
    boundary: int | None = None
    microbatch: int | None = None
    peer: str | None = None
    """Worker whose rows it waits for."""
    sending: tuple[int, int] | None = None
    """(boundary, microbatch) of the oldest result that its devices have not finished."""
    steps: int = 0
    """Actions and sends done since it started: it has moved on when this has."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Report:
        sending = data["sending"]
        return cls(**{**data, "sending": None if sending is None else tuple(sending)})
