"""Starting and ending workers' processes, here or wherever a launcher reaches."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from weavejax.plan import Plan, PlanError
from weavejax.workers.orders import Orders
from weavejax.workers.share import WorkerName, worker_names


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a worker will run."""

    interface: str
    """Address of its host."""
    cores: tuple[int, ...] | None = None
    """CPU cores it has to itself."""
    host: str = "this host"


class Launcher(Protocol):
    """Places workers, starts and ends their processes, and tells how they ended."""

    def place(self, plan: Plan, interface: str) -> dict[WorkerName, Place]:
        """Where every worker of a plan goes. Called once, before the first start."""
        ...

    def start(self, name: WorkerName, orders: Orders) -> None:
        """Start a worker's process; returns at once."""
        ...

    def exit_status(self, name: WorkerName) -> int | None:
        """Of an ended process, negative for a signal; ``None`` while it runs."""
        ...

    def log_tail(self, name: WorkerName) -> str:
        """The last lines a worker wrote."""
        ...

    def kill(self) -> None:
        """End every process at once, stopped ones too, and wait until they are gone."""
        ...

    def close(self) -> None:
        """Let go of everything else."""
        ...


class ProcessHost:
    """Workers' processes of one host."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._logs = tempfile.TemporaryDirectory(prefix="weavejax-workers-")
        # A worker ends with the thread that started it, so that one thread starts all and stays.
        self._starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="start workers")

    def start(
        self,
        name: str,
        orders: Mapping[str, object],
        *,
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> int:
        """Start a worker and hand it its orders; returns the process's number."""
        return self._starter.submit(
            self._start, name, orders, {**os.environ, **(environment or {})}, tuple(prefix)
        ).result()

    def _start(
        self,
        name: str,
        orders: Mapping[str, object],
        environment: Mapping[str, str],
        prefix: tuple[str, ...],
    ) -> int:
        with self._log(name).open("w") as log:
            process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "weavejax.workers.process"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                text=True,
                start_new_session=True,  # Ctrl-C is for the coordinator
            )
        self._processes[name] = process
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(orders) + "\n")  # the secret is in no command line
            process.stdin.close()
        except BrokenPipeError:
            pass  # it has died; its exit status says so
        return process.pid

    def exit_status(self, name: str) -> int | None:
        process = self._processes.get(name)
        return None if process is None else process.poll()

    def process_id(self, name: str) -> int:
        return self._processes[name].pid

    def log_tail(self, name: str, lines: int = 12) -> str:
        log = self._log(name)
        return (
            "\n".join(log.read_text("utf-8", "replace").splitlines()[-lines:])
            if log.exists()
            else ""
        )

    def kill(self) -> None:
        """SIGKILL also ends a stopped process."""
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
        for process in self._processes.values():
            process.wait()
        self._processes.clear()

    def close(self) -> None:
        self.kill()
        self._starter.shutdown()
        self._logs.cleanup()

    def _log(self, name: str) -> Path:
        return Path(self._logs.name) / f"{name}.log"


class LocalLauncher:
    """Workers as child processes on this machine, pinned to cores where there are enough."""

    def __init__(self, *, platform: str | None = None) -> None:
        self.host, self._platform = ProcessHost(), platform

    def place(self, plan: Plan, interface: str) -> dict[WorkerName, Place]:
        """Cores are dealt out evenly; with fewer cores than workers nothing is pinned.

        Raises:
            PlanError: groups on accelerators.
        """
        kinds = {group.device for group in plan.groups}
        if self._platform != "cpu" and kinds != {"cpu"}:
            raise PlanError(
                "processes of this machine run on CPU, got groups on "
                f'{", ".join(sorted(kinds))}; use backend="ray", which gives every worker devices '
                'of its own, or WorkerOptions(platform="cpu")'
            )
        names = worker_names(plan)
        shares = deal_cores(sorted(os.sched_getaffinity(0)), len(names))
        return {
            name: Place(interface=interface, cores=cores)
            for name, cores in zip(names, shares, strict=True)
        }

    def start(self, name: WorkerName, orders: Orders) -> None:
        self.host.start(str(name), orders.to_dict())

    def exit_status(self, name: WorkerName) -> int | None:
        return self.host.exit_status(str(name))

    def log_tail(self, name: WorkerName) -> str:
        return self.host.log_tail(str(name))

    def kill(self) -> None:
        self.host.kill()

    def close(self) -> None:
        self.host.close()


def deal_cores(cores: Sequence[int], workers: int) -> list[tuple[int, ...] | None]:
    """Cores of every worker, or ``None`` for all when there are too few.

    Examples:
        >>> deal_cores([0, 1, 4, 5, 6], 2)
        [(0, 1), (4, 5)]
        >>> deal_cores([0], 2)
        [None, None]
    """
    each = len(cores) // workers
    if each == 0:
        return [None] * workers
    return [tuple(cores[index * each : (index + 1) * each]) for index in range(workers)]
