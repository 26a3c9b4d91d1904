"""Whether a long run grows: memory, threads and descriptors of workers and coordinator."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from weavejax.runtime.batches import greedy_rows
from weavejax.workers.executor import ClusterExecutor


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What one process holds, after some iterations."""

    process: str
    iterations: int
    memory_bytes: int
    """Resident."""
    threads: int
    descriptors: int


def measure_growth(
    executor: ClusterExecutor,
    iterations: int,
    *,
    samples: int = 5,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> list[Usage]:
    """Decode and look at every process ``samples`` times; the first time after a tenth.

    Rows join and leave as requests do: every hundred iterations all start at position 0 again.
    """
    marks = sorted({max(1, iterations * (index + 1) // samples) for index in range(samples)})
    marks = sorted({max(1, iterations // 10), *marks})
    processes = {str(name): pid for name, pid in executor.coordinator.process_ids().items()}
    processes["coordinator"] = os.getpid()
    plan, usages = executor.plan, []
    rows, microbatches = plan.microbatch_rows, range(plan.microbatches)
    ones = np.ones(rows, np.int32)
    span = min(100, plan.workload.context - 1)
    before = None
    for iteration in range(1, iterations + 1):
        if iteration % span == 1 or span == 1:
            for microbatch in microbatches:
                executor.set_rows(microbatch, ones * 0, ones, greedy_rows(rows))
        results = executor.decode(dict.fromkeys(microbatches, span))
        if before is not None:
            np.asarray(before[plan.microbatches - 1][0])
        before = results
        if iteration in marks:
            usages += [_usage(name, pid, iteration) for name, pid in processes.items()]
            progress("iterations", iteration, iterations)
    return usages


def _usage(process: str, process_id: int, iterations: int) -> Usage:
    proc = Path(f"/proc/{process_id}")
    status = dict(
        line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line
    )
    return Usage(
        process=process,
        iterations=iterations,
        memory_bytes=int(status["VmRSS"].split()[0]) * 1024,
        threads=int(status["Threads"]),
        descriptors=len(list((proc / "fd").iterdir())),
    )
