"""Tracing a running plan: spans of what every group did, in the type the simulator uses.

The host loop never waits. It hands every action it has submitted to a :class:`Recorder`, where one
thread per group waits for the results in order and stamps the moment each is there. A span ends at
that moment; it begins when the last of four things had happened: the action was submitted, its
microbatch had arrived, and the group and whatever it computes on were free.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import jax
from jax.sharding import Mesh

from weavejax.meshes.submesh import share_hardware
from weavejax.schedule import Action, Run, Schedule
from weavejax.span import Span, write_chrome_trace

Work = Literal["stage", "head", "move"]
Array = Any
_Stamp = tuple[Action, float, tuple[int, ...], float]
"""Action, when it was submitted, shape of what it made, when that was there."""
_SWITCH_S = 1e-4
"""How soon a thread that has a stamp to make gets to run, while a trace runs."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One action as it was observed."""

    group: int
    work: Work
    index: int
    """Stage occurrence, or the one before the boundary."""
    microbatch: int
    iteration: int
    prefill: bool
    submitted_s: float
    done_s: float

    @property
    def name(self) -> str:
        """As the simulator calls it: ``run stage 3 mb0``."""
        return _name(self.work, self.index, self.prefill, self.microbatch)


class Traceable(Protocol):
    """What a trace needs of an executor."""

    observer: Callable[[int, Action, Sequence[Array]], None] | None
    schedule: Schedule

    @property
    def meshes(self) -> Sequence[Mesh]: ...


class Recorder:
    """Follows an executor's actions: its ``observer`` while a trace runs."""

    def __init__(self, groups: int) -> None:
        self._queues: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(groups)]
        self._stamps: list[list[_Stamp]] = [[] for _ in range(groups)]
        self._threads = [
            threading.Thread(target=self._watch, args=(group,), daemon=True)
            for group in range(groups)
        ]
        # The host submits without pause; a stamp must not wait until it next lets go of Python.
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        for thread in self._threads:
            thread.start()

    def __call__(self, group: int, action: Action, arrays: Sequence[Array]) -> None:
        """Note an action that was just submitted and what it will produce."""
        # The first result only: a stage's last ones are caches, which the next iteration consumes.
        self._queues[group].put((action, time.perf_counter(), arrays[0]))

    def stop(self) -> list[Record]:
        """Wait for everything submitted; the records in the order they were done."""
        for waiting in self._queues:
            waiting.put(None)
        for thread in self._threads:
            thread.join()
        sys.setswitchinterval(self._switch_s)
        records = []
        for group, stamps in enumerate(self._stamps):
            seen: dict[tuple[Any, ...], int] = {}
            for action, submitted_s, shape, done_s in stamps:
                work, index, prefill = _what(action, shape)
                key = (work, index, action.microbatch, prefill)
                iteration = seen[key] = seen.get(key, -1) + 1
                records.append(
                    Record(
                        group=group,
                        work=work,
                        index=index,
                        microbatch=action.microbatch,
                        iteration=iteration,
                        prefill=prefill,
                        submitted_s=submitted_s,
                        done_s=done_s,
                    )
                )
        return sorted(records, key=lambda record: record.done_s)

    def _watch(self, group: int) -> None:
        # Every microsecond here is taken from the plan when both share a core.
        take, add, now = self._queues[group].get, self._stamps[group].append, time.perf_counter
        annotated = jax.profiler.TraceAnnotation.is_enabled
        while (entry := take()) is not None:
            action, submitted_s, array = entry
            if annotated():
                name = _name(*_what(action, array.shape), action.microbatch)
                with jax.profiler.TraceAnnotation(name):
                    array.block_until_ready()
            else:
                array.block_until_ready()
            add((action, submitted_s, array.shape, now()))
            del entry, array  # or the buffer lives until the next action is there


def _what(action: Action, shape: tuple[int, ...]) -> tuple[Work, int, bool]:
    """Kind, index and whether it is of a prefill, from the shape of an action's first result."""
    prefill = len(shape) > 1 and shape[1] > 1
    if isinstance(action, Run):
        return "head" if len(shape) == 1 else "stage", action.stage, prefill
    return "move", action.boundary, prefill


def _name(work: Work, index: int, prefill: bool, microbatch: int) -> str:
    what = {"stage": f"run stage {index}", "head": "run head"}.get(work, f"send boundary {index}")
    return f"{'prefill ' * prefill}{what} mb{microbatch}"


class Trace:
    """What :meth:`weavejax.engine.Engine.trace` yields; it has its spans when the block ends.

    Examples:
        >>> import weavejax as wj
        >>> model = wj.load_model("llama-3.1-8b", random_weights=True, scale="tiny")
        >>> with wj.serve(model, "afd", slots=2, context=32, prefill_chunks=(8,)) as engine:
        ...     with engine.trace() as trace:
        ...         _ = engine.generate([[1, 2, 3]], wj.SamplingParams(max_tokens=4))
        >>> sorted({span.kind for span in trace.spans if span.group == 0})
        ['compute', 'idle', 'receive', 'send']
    """

    def __init__(self) -> None:
        self.spans: tuple[Span, ...] = ()

    def save(self, path: str | Path) -> None:
        """Write the spans for https://ui.perfetto.dev."""
        write_chrome_trace(path, self.spans)


@contextmanager
def trace_executor(executor: Traceable, lock: AbstractContextManager[Any]) -> Iterator[Trace]:
    """Follow every action of an executor while the block runs.

    The spans are those of compute, send, receive and idle, of every group and microbatch. In a
    :mod:`jax.profiler` trace of the same time they are annotations of the same names.

    Args:
        executor: what to follow.
        lock: held while its iterations run.

    Raises:
        RuntimeError: a trace already runs, or the groups are processes, which are not followed.
    """
    if not hasattr(executor, "observer"):
        raise RuntimeError(
            "only an engine whose groups live in this process can be traced, got groups that are "
            'processes; serve the plan with backend="in-process"'
        )
    with lock:
        if executor.observer is not None:
            raise RuntimeError("a trace of this engine already runs; end it first")
        recorder = executor.observer = Recorder(len(executor.meshes))
    trace = Trace()
    try:
        yield trace
    finally:
        with lock:
            executor.observer = None
        shared = share_hardware(executor.meshes)
        trace.spans = spans_of(recorder.stop(), executor.schedule.owners, shared=shared)


def spans_of(records: Iterable[Record], owners: Sequence[int], *, shared: bool) -> tuple[Span, ...]:
    """Spans of compute, moves at both ends, and idle time between computing.

    Args:
        records: of :meth:`Recorder.stop`.
        owners: group of each stage occurrence.
        shared: the groups compute on the same cores, one after the other, so that an action of
            one cannot have begun before the last one of any was done.

    Returns:
        In order of their start, in seconds from the first submission.
    """
    records = sorted(records, key=lambda record: record.done_s)
    origin_s = min((record.submitted_s for record in records), default=0.0)
    arrived: dict[int, float] = {}
    free: dict[Any, float] = {}
    spans: list[Span] = []
    for record in records:
        lane = 0 if shared else (record.group, record.work == "move")
        start_s = max(record.submitted_s, arrived.get(record.microbatch, 0), free.get(lane, 0))
        start_s = min(start_s, record.done_s)
        arrived[record.microbatch] = free[lane] = record.done_s
        whole = Span(
            name=record.name,
            kind="compute",
            group=record.group,
            start_s=start_s - origin_s,
            end_s=record.done_s - origin_s,
            microbatch=record.microbatch,
            occurrence=record.index,
            iteration=record.iteration,
        )
        target = owners[(record.index + 1) % len(owners)]
        if record.work != "move":
            spans.append(whole)
        elif target != record.group:
            there = record.name.replace("send", "receive")
            spans.append(replace(whole, kind="send"))
            spans.append(replace(whole, kind="receive", name=there, group=target))
    return tuple(sorted([*spans, *_idle(spans)], key=lambda s: (s.start_s, s.end_s, s.group)))


def _idle(spans: Sequence[Span]) -> list[Span]:
    """The gaps between a group's computations, from the first one of all to the last."""
    computing = sorted((s for s in spans if s.kind == "compute"), key=lambda s: s.start_s)
    first = min((span.start_s for span in computing), default=0.0)
    last = max((span.end_s for span in computing), default=0.0)
    gaps = []
    for group in sorted({span.group for span in computing}):
        mine = [span for span in computing if span.group == group]
        ends = [first]
        for span in mine:
            ends.append(max(ends[-1], span.end_s))
        starts = [*(span.start_s for span in mine), last]
        iterations = [*(span.iteration for span in mine), mine[-1].iteration]
        gaps += [
            Span(name="idle", kind="idle", group=group, start_s=a, end_s=b, iteration=iteration)
            for a, b, iteration in zip(ends, starts, iterations, strict=True)
            if b > a
        ]
    return gaps
