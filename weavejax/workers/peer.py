"""What the coordinator knows of one worker."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from weavejax.workers.failure import Seen
from weavejax.workers.frames import Channel
from weavejax.workers.progress_report import Report


@dataclass
class Peer:
    """What the coordinator knows of a worker."""

    channel: Channel
    address: tuple[str, int]
    process_id: int
    report: Report = field(default_factory=Report)
    answered_s: float = field(default_factory=time.monotonic)
    moved_s: float = field(default_factory=time.monotonic)
    prepared: bool = False
    server: str | None = None
    """Address of its transfer server, where it has one."""
    ready: bool = False
    compiled: int = 0
    closed: bool = False
    lost: tuple[str, str] | None = None
    error: str | None = None
    times: dict[int, list[float]] = field(default_factory=dict)

    def seen(self, now_s: float, since_s: float, exit_status: int | None) -> Seen:
        """For the judgement. Standstill counts from ``since_s``, when work began.

        Reading weights and compiling may keep a process from answering, so that silence counts
        once it is ready.
        """
        return Seen(
            report=self.report,
            silent_s=now_s - self.answered_s if self.ready else 0.0,
            still_s=now_s - max(self.moved_s, since_s) if self.ready else 0.0,
            exit_status=exit_status,
            closed=self.closed,
            lost=self.lost,
            error=self.error,
        )
