"""Many searches, in parallel over processes; each result is kept so that figures can share it."""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import TracebackType

from weavejax.planner import PolicyError
from weavejax.workbench.cases import Case, Outcome, failed, portable, solve

Report = Callable[[str, int, int], None]
"""(what, done, total), as :func:`weavejax.progress.show_progress` gives."""

CASES_PER_PROCESS = 4
"""A process takes seconds to start; fewer cases than this do not pay for another."""


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Searches:
    """A pool that searches cases and remembers their outcomes. A context manager.

    Args:
        jobs: processes at most; every core by default. One works in this process.

    Raises:
        ValueError: fewer than one job.
    """

    def __init__(self, jobs: int | None = None) -> None:
        if jobs is not None and jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {jobs}")
        self.jobs = cores() if jobs is None else jobs
        self._known: dict[Case, Outcome] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()

    def __enter__(self) -> Searches:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes of the pool."""
        for process in self._processes:
            process.terminate()
            process.wait()
        self._processes.clear()
        self._idle = queue.SimpleQueue()

    def run(
        self, cases: Sequence[Case], *, progress: Report | None = None, what: str = "searching"
    ) -> list[Outcome]:
        """Outcomes in the order of the cases; a case searched before is not searched again.

        Raises:
            ValueError: a setting that is wrong, such as a device without a price.
        """
        asked = [self._portable(case) for case in cases]
        new = [case for case in dict.fromkeys(asked) if case not in self._known]
        jobs = min(self.jobs, -(-len(new) // CASES_PER_PROCESS))
        if any(_only_here(case) for case in new):
            jobs = 1
        done = 0
        for case, outcome in self._solved(new, jobs):
            self._known[case] = outcome
            done += 1
            if progress is not None:
                progress(what, done, len(new))
        return [self._known[case] for case in asked]

    def _portable(self, case: Case) -> Case:
        """The case as it travels; one whose policy fails has its outcome already."""
        try:
            return portable(case)
        except PolicyError as error:
            self._known[case] = failed(error)
            return case

    def _solved(self, cases: list[Case], jobs: int) -> Iterator[tuple[Case, Outcome]]:
        if jobs <= 1:
            for case in cases:
                yield case, solve(case)
            return
        pool = ThreadPoolExecutor(jobs)
        try:
            waiting: dict[Future[Outcome], Case] = {
                pool.submit(self._ask, case): case for case in cases
            }
            while waiting:
                ready, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in ready:
                    yield waiting.pop(future), future.result()
        except BaseException:
            self.close()  # threads that wait for an answer see their process end
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def _ask(self, case: Case) -> Outcome:
        """Send a case to an idle process and wait for its answer."""
        try:
            process = self._idle.get_nowait()
        except queue.Empty:
            process = _start()
            self._processes.append(process)
        assert process.stdin is not None and process.stdout is not None
        pickle.dump(case, process.stdin)
        process.stdin.flush()
        try:
            reply = pickle.load(process.stdout)
        except EOFError:
            raise RuntimeError(
                f"a search process ended with status {process.wait()} before it answered; "
                "try jobs=1 to see why"
            ) from None
        self._idle.put(process)
        if isinstance(reply, Exception):
            raise reply
        return reply


def _start() -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C reaches the caller, which ends its processes.
    return subprocess.Popen(
        [sys.executable, "-m", "weavejax.workbench.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


def _only_here(case: Case) -> bool:
    """Whether a case names a class that only the running script defines."""
    return case.profile is not None and type(case.profile).__module__ == "__main__"
