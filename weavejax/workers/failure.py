"""Who failed, and where: a pure judgement from what workers last said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weavejax.workers.progress_report import Report
from weavejax.workers.share import WorkerName


class WorkerError(RuntimeError):
    """A device group's worker died, stalled or lost a connection.

    The message names the group, the replica, and as far as it is known the stage, the microbatch
    and the boundary that another waited for.
    """

    def __init__(
        self,
        reason: str,
        worker: WorkerName,
        *,
        stage: int | None = None,
        microbatch: int | None = None,
        boundary: int | None = None,
        waiting: WorkerName | None = None,
    ):
        self.reason, self.worker = reason, worker
        self.stage, self.microbatch, self.boundary = stage, microbatch, boundary
        self.waiting = waiting
        where = f" in stage {stage}, microbatch {microbatch}" if stage is not None else ""
        super().__init__(f"{worker.describe()} {reason}{where}{self._waited()}")

    def _waited(self) -> str:
        if self.waiting is None:
            return ""
        return (
            f"; {self.waiting.describe()} waited for boundary {self.boundary}, "
            f"microbatch {self.microbatch}"
        )


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is known of one worker at the moment of judgement."""

    report: Report
    silent_s: float
    """Seconds since it last answered."""
    still_s: float
    """Seconds since it last moved on."""
    exit_status: int | None = None
    """Of its process, once that has ended."""
    closed: bool = False
    """Its connection to the coordinator is gone."""
    lost: tuple[str, str] | None = None
    """(peer, reason) of a data connection it lost."""
    error: str | None = None
    """What it raised."""


def find_failure(
    seen: Mapping[WorkerName, Seen], *, timeout_s: float, busy: bool
) -> WorkerError | None:
    """The failure that explains the others, or ``None`` while all is well.

    In this order: what a worker raised, an ended process, a closed or silent connection, a data
    connection lost between two live workers, and no progress anywhere while there is work.

    Args:
        seen: every worker.
        timeout_s: silence or standstill that counts as failure.
        busy: there is a pass whose results are awaited.

    Examples:
        >>> well = Seen(report=Report(state="waiting", boundary=2, microbatch=0, peer="1.0"),
        ...             silent_s=0.1, still_s=0.5)
        >>> dead = Seen(report=Report(state="running", stage=1, microbatch=0),
        ...             silent_s=0.2, still_s=0.5, exit_status=-9)
        >>> print(find_failure({WorkerName(0, 0): well, WorkerName(1, 0): dead},
        ...                    timeout_s=5.0, busy=True))
        group 1 replica 0 died (killed by signal 9) in stage 2, microbatch 0; \
group 0 replica 0 waited for boundary 2, microbatch 0
    """
    for name, worker in seen.items():
        if worker.error is not None:
            return _name(seen, name, f"failed ({worker.error})")
    for name, worker in seen.items():
        if worker.exit_status is not None:
            return _name(seen, name, f"died ({_status(worker.exit_status)})")
    for name, worker in seen.items():
        if worker.closed:
            return _name(seen, name, "closed its connection")
    silent = [name for name, worker in seen.items() if worker.silent_s > timeout_s]
    if silent:
        longest = max(silent, key=lambda name: seen[name].silent_s)
        seconds = seen[longest].silent_s
        return _name(seen, longest, f"did not answer for {seconds:.1f} s")
    for name, worker in seen.items():
        if worker.lost is not None:
            peer, reason = worker.lost
            return _name(seen, name, f"lost its connection with worker {peer} ({reason})")
    still = all(worker.still_s > timeout_s for worker in seen.values())
    if busy and still:
        return _standstill(seen)
    return None


def _standstill(seen: Mapping[WorkerName, Seen]) -> WorkerError:
    """Follow who waits for whom to the worker that waits for nobody."""
    seconds = min(worker.still_s for worker in seen.values())
    name = next(iter(seen))
    for _ in seen:
        report = seen[name].report
        if report.state != "waiting" or report.peer is None:
            break
        name = WorkerName.parse(report.peer)
    return _name(seen, name, f"made no progress for {seconds:.1f} s")


def _name(seen: Mapping[WorkerName, Seen], worker: WorkerName, reason: str) -> WorkerError:
    """Name the place: what others wait for is fresher than a dead worker's last word."""
    for other, one in seen.items():
        report = one.report
        if other != worker and report.state == "waiting" and report.peer == str(worker):
            return WorkerError(
                reason,
                worker,
                stage=report.boundary,
                microbatch=report.microbatch,
                boundary=report.boundary,
                waiting=other,
            )
    report = seen[worker].report
    if report.state == "waiting" and report.peer is not None:
        return WorkerError(
            reason,
            worker,
            stage=report.stage,
            microbatch=report.microbatch,
            boundary=report.boundary,
            waiting=worker,
        )
    stage, microbatch = report.sending or (report.stage, report.microbatch)
    return WorkerError(reason, worker, stage=stage, microbatch=microbatch)


def _status(status: int) -> str:
    return f"killed by signal {-status}" if status < 0 else f"exit status {status}"
