"""Faults on purpose: workers and coordinators killed, stopped and cut off at random passes.

Every request must end, finished with the tokens of an undisturbed run or with an error that
names what failed, and no process may be left.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from weavejax.engine import Engine
from weavejax.models.loading import Model
from weavejax.plan import Plan
from weavejax.request import Output, SamplingParams
from weavejax.workers.executor import ClusterExecutor
from weavejax.workers.failure import WorkerError
from weavejax.workers.options import WorkerOptions

KINDS = ("kill", "stop", "drop", "coordinator")
"""SIGKILL and SIGSTOP of a worker, a cut data connection, SIGKILL of the coordinator."""


@dataclass(frozen=True, kw_only=True)
class FaultRound:
    """One fault and what became of the requests."""

    kind: str
    victim: str
    """Worker, or ``coordinator``."""
    at_pass: int
    restarts: bool
    """Workers were to be started again."""
    finished: int
    failed: int
    """Ended with an error that names the failure."""
    wrong: int
    """Lost, doubled or other tokens than without a fault, or an error without a name."""
    named: str
    """The failure as it was named, first line."""
    left: int
    """Processes left afterwards."""
    seconds: float
    """From the fault to the end of every request, or of every process."""


@dataclass(frozen=True, kw_only=True)
class Campaign:
    """What to break, and how often."""

    model: Model
    plan: Plan
    launcher: Callable[[], Any]
    options: WorkerOptions
    prompts: Sequence[Sequence[int]]
    max_tokens: int = 24
    coordinator_command: Sequence[str] = ()
    """Starts another process that prints its workers' process ids and serves until killed."""
    deadline_s: float = 120.0


def run_faults(
    campaign: Campaign,
    rounds: int,
    *,
    kinds: Sequence[str] = KINDS,
    seed: int = 0,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> list[FaultRound]:
    """Run a campaign; kinds take turns, everything else is drawn from ``seed``.

    The first round's requests run undisturbed once more, as the reference.

    Raises:
        ValueError: ``drop`` where rows do not travel by sockets.
    """
    if "drop" in kinds and campaign.options.moves == "device":
        raise ValueError('the fault "drop" cuts sockets, got moves="device"')
    draw = random.Random(seed)
    bench = _Bench(campaign)
    results = []
    try:
        expected = bench.generate()
        for index in range(rounds):
            kind = kinds[index % len(kinds)]
            if kind == "coordinator":
                results.append(_kill_coordinator(campaign, draw))
            else:
                restarts = bool(index // len(kinds) % 2 == 0)
                results.append(bench.round(kind, restarts, draw, expected))
            progress("faults", index + 1, rounds)
    finally:
        bench.close()
    return results


class _Bench:
    """An engine that is made again whenever it has ended."""

    def __init__(self, campaign: Campaign):
        self.campaign = campaign
        self._engine: Engine | None = None

    def _open(self) -> tuple[Engine, ClusterExecutor]:
        if self._engine is None:
            c = self.campaign
            self._executor = ClusterExecutor(
                c.model, c.plan, c.launcher(), chunks=(8,), options=c.options
            )
            self._engine = Engine(c.model, c.plan, self._executor)
        return self._engine, self._executor

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def generate(self) -> list[Output]:
        engine, _ = self._open()
        params = SamplingParams(max_tokens=self.campaign.max_tokens, ignore_eos=True)
        return engine.generate([list(prompt) for prompt in self.campaign.prompts], params)

    def round(
        self, kind: str, restarts: bool, draw: random.Random, expected: list[Output]
    ) -> FaultRound:
        _, executor = self._open()
        executor.allow_restarts(1 if restarts else 0)
        workers = executor.coordinator.process_ids()
        victim = draw.choice(sorted(workers))
        after = draw.randrange(1, self.campaign.max_tokens)
        start_pass = executor.passes
        hit: list[float] = []

        def strike() -> None:
            while executor.passes < start_pass + after:
                time.sleep(0.0005)
            hit.append(time.monotonic())
            if kind == "drop":
                executor.coordinator.send(victim, {"do": "drop"})
            else:
                number = signal.SIGKILL if kind == "kill" else signal.SIGSTOP
                os.kill(workers[victim], number)

        thread = threading.Thread(target=strike, daemon=True)
        thread.start()
        outputs = self.generate()
        seconds = time.monotonic() - hit[0] if hit else 0.0
        thread.join(5.0)
        failure = executor.last_failure
        failed = [output for output in outputs if output.error is not None]
        if not restarts:
            self.close()
        return FaultRound(
            kind=kind,
            victim=str(victim),
            at_pass=after,
            restarts=restarts,
            finished=len(outputs) - len(failed),
            failed=len(failed),
            wrong=count_wrong(outputs, expected, failure),
            named="" if failure is None else str(failure).splitlines()[0],
            left=count_alive(workers.values()),
            seconds=seconds,
        )


def count_wrong(
    outputs: Sequence[Output], expected: Sequence[Output], failure: WorkerError | None
) -> int:
    """Requests that did not end as they must.

    A finished one has the expected tokens; a failed one has a beginning of them and an error with
    the failure's name.
    """
    wrong = abs(len(expected) - len(outputs))
    for ours, theirs in zip(outputs, expected, strict=False):
        if ours.error is None:
            wrong += ours.token_ids != theirs.token_ids
        else:
            named = failure is not None and str(failure) in ours.error
            begins = ours.token_ids == theirs.token_ids[: len(ours.token_ids)]
            wrong += not (named and begins)
    return wrong


def count_alive(process_ids: Any, patience_s: float = 10.0) -> int:
    """Processes that do not end within the patience; zombies have ended."""
    deadline = time.monotonic() + patience_s
    remaining = list(process_ids)
    while remaining and time.monotonic() < deadline:
        remaining = [number for number in remaining if _runs(number)]
        time.sleep(0.02)
    return len(remaining)


def _runs(process_id: int) -> bool:
    try:
        with open(f"/proc/{process_id}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def _kill_coordinator(campaign: Campaign, draw: random.Random) -> FaultRound:
    """Another coordinator serves the same plan, is killed, and must leave nothing."""
    process = subprocess.Popen(
        list(campaign.coordinator_command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    workers = [int(word) for word in line.split()]
    delay_s = draw.uniform(0.0, 1.0)
    time.sleep(delay_s)
    process.kill()
    start = time.monotonic()
    process.wait()
    left = count_alive(workers, campaign.deadline_s)
    return FaultRound(
        kind="coordinator",
        victim="coordinator",
        at_pass=-1,
        restarts=False,
        finished=0,
        failed=0,
        wrong=0 if workers else 1,
        named=f"killed {delay_s:.2f} s into serving",
        left=left,
        seconds=time.monotonic() - start,
    )


def python_module(module: str, *arguments: str) -> list[str]:
    """Command line of a module of this package."""
    return [sys.executable, "-m", module, *arguments]
