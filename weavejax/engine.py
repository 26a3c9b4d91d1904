"""The engine: requests in, tokens out. A step admits, prefills, decodes once and records.

The host runs one iteration ahead of the tokens it has seen: ids come back asynchronously, so a
stop condition is noticed one iteration late and the surplus token is dropped.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from weavejax.engine_stats import EngineStats
from weavejax.models.loading import Model
from weavejax.plan import Plan
from weavejax.prompts import split_prompts
from weavejax.request import Output, Prompt, SamplingParams, StreamChunk
from weavejax.runtime.executor import Executor
from weavejax.runtime.passes import PassExecutor, Rows
from weavejax.sequence import RunningSequence, start_sequence
from weavejax.slots import SlotTable
from weavejax.trace import Trace, trace_executor
from weavejax.workers.failure import WorkerError


@dataclass(frozen=True)
class _Pending:
    """Sampled tokens on their way to the host."""

    ids: Rows
    logprobs: Rows | None
    rows: list[tuple[RunningSequence, int]]


class Engine:
    """Serves one model through one plan. Made by :func:`weavejax.serve`; a context manager."""

    def __init__(self, model: Model, plan: Plan, executor: PassExecutor):
        self.model, self.plan = model, plan
        self._executor = executor
        self._slots = SlotTable(executor.cells, executor.chunks)
        self._waiting: deque[RunningSequence] = deque()
        self._pending: deque[list[_Pending]] = deque()
        self._numbers = itertools.count()
        self._lock = threading.RLock()
        self._closed = False
        self._unfinished: list[RunningSequence] = []
        """Requests that were given a slot, in that order; some may have ended."""
        self._failure: str | None = None
        self._counts = dict.fromkeys(
            ("requests_finished", "prompt_tokens", "generated_tokens"), 0
        ) | dict.fromkeys(("prefill_passes", "decode_iterations"), 0)

    # -- public --------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        on_finish: Callable[[Output], None] | None = None,
    ) -> list[Output]:
        """Generate for every prompt and wait for all.

        Args:
            prompts: text, token ids or a chat, or a list of those.
            params: one for all, or one per prompt; greedy with 16 tokens by default.
            on_finish: called with each output as it finishes.

        Returns:
            One output per prompt, in order. A prompt that cannot run has ``finish_reason``
            ``"error"`` and says why in ``error``; the others are not disturbed.

        Raises:
            ValueError: a list of params of another length than the prompts.
        """
        outputs: dict[int, Output] = {}
        for chunk in self.stream(prompts, params):
            if chunk.output is not None:
                outputs[chunk.index] = chunk.output
                if on_finish is not None:
                    on_finish(chunk.output)
        return [outputs[index] for index in sorted(outputs)]

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[StreamChunk]:
        """Generate, yielding text as it comes. Closing the iterator aborts what is unfinished.

        Several streams may be open at once, from one thread or several: any of them moves all.
        """
        sequences = self._submit(split_prompts(prompts), params)
        return self._stream(sequences)

    @property
    def executor(self) -> PassExecutor:
        """What runs the passes."""
        return self._executor

    @property
    def executed_plan(self) -> Plan:
        """The plan as it runs: :attr:`plan`, folded where its groups share too few devices."""
        return self._executor.plan

    def trace(self) -> AbstractContextManager[Trace]:
        """Follow every action while a ``with`` block runs: see :class:`weavejax.trace.Trace`."""
        with self._lock:
            self._check_open()
            if not isinstance(self._executor, Executor):
                raise ValueError("a trace follows groups inside this process, got worker processes")
            return trace_executor(self._executor, self._lock)

    def stats(self) -> EngineStats:
        """Counts since the engine started."""
        with self._lock:
            return EngineStats(
                slots=self.plan.batch,
                running=len(self._slots.running),
                waiting=len(self._waiting),
                programs_compiled=self._executor.programs.compiled,
                **self._counts,
            )

    def close(self) -> None:
        """End every request and let go of the devices' memory. Closing twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for sequence in (*self._slots.running, *self._waiting):
                sequence.end("abort", time.perf_counter(), "the engine was closed")
            self._waiting.clear()
            self._pending.clear()
            self._executor.close()
            del self._executor

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- requests ------------------------------------------------------------------------------

    def _submit(
        self, prompts: list[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[RunningSequence]:
        if params is None or isinstance(params, SamplingParams):
            each = [params or SamplingParams()] * len(prompts)
        else:
            each = list(params)
        if not all(isinstance(one, SamplingParams) for one in each):
            raise TypeError(f"params must be SamplingParams, one or a list, got {params!r}")
        if len(each) != len(prompts):
            raise ValueError(
                f"params must be one for all or one per prompt ({len(prompts)}), got {len(each)}"
            )
        with self._lock:
            self._check_open()
            sequences = [
                start_sequence(
                    index,
                    prompt,
                    param,
                    model=self.model,
                    context=self.plan.workload.context,
                    number=next(self._numbers),
                )
                for index, (prompt, param) in enumerate(zip(prompts, each, strict=True))
            ]
            self._waiting.extend(sequence for sequence in sequences if not sequence.finished)
            return sequences

    def _stream(self, sequences: list[RunningSequence]) -> Iterator[StreamChunk]:
        open_ones = list(sequences)
        try:
            while open_ones:
                with self._lock:
                    chunks = [chunk for s in open_ones if (chunk := s.next_chunk()) is not None]
                    open_ones = [s for s in open_ones if not s.finished]
                    if not chunks:
                        self._check_open()
                        self.step()
                yield from chunks
        finally:
            with self._lock:
                for sequence in open_ones:
                    self._abort(sequence)

    def _abort(self, sequence: RunningSequence) -> None:
        sequence.end("abort", time.perf_counter())
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        self._slots.release(sequence)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this engine is closed; make another with weavejax.serve")
        if self._failure is not None:
            raise RuntimeError(
                f"this engine stopped in the middle of an iteration ({self._failure}); "
                "make another with weavejax.serve"
            )

    # -- the loop ------------------------------------------------------------------------------

    def step(self) -> None:
        """Admit, prefill, decode once, and record the tokens of the iteration before."""
        with self._lock:
            self._check_open()
            try:
                self._admit()
                started = self._prefill() + self._decode()
                if started:
                    self._pending.append(started)
                while len(self._pending) > (1 if started else 0):
                    self._record(self._pending.popleft())
            except WorkerError as error:
                if self._executor.recover(error):
                    self._start_over()
                else:
                    self._fail(error)
            except BaseException as error:  # caches may be half updated, Ctrl-C included
                self._fail(error)
                raise

    def _start_over(self) -> None:
        """After workers were started again: caches are empty, the tokens so far are kept.

        Tokens that were on their way are sampled again, as the same ones.
        """
        self._pending.clear()
        self._slots = SlotTable(self._executor.cells, self._executor.chunks)
        again = [sequence for sequence in self._unfinished if not sequence.finished]
        self._unfinished.clear()
        for sequence in reversed(again):
            sequence.start_over()
            self._waiting.appendleft(sequence)

    def _fail(self, error: BaseException) -> None:
        """End every request by name: nothing may wait for an engine that cannot go on."""
        self._failure = f"{type(error).__name__}: {error}".rstrip(": ")
        for sequence in (*self._unfinished, *self._waiting):
            sequence.end("error", time.perf_counter(), f"the engine stopped: {self._failure}")
        self._waiting.clear()
        self._pending.clear()

    def _admit(self) -> None:
        while self._waiting and self._slots.admit(self._waiting[0]):
            sequence = self._waiting.popleft()
            self._unfinished = [one for one in self._unfinished if not one.finished] + [sequence]
            self._counts["prompt_tokens"] += len(sequence.prompt)

    def _prefill(self) -> list[_Pending]:
        started = []
        while (work := self._slots.next_prefill()) is not None:
            batch, finishing = work
            result = self._executor.prefill(batch)
            self._counts["prefill_passes"] += 1
            if result is not None:
                started.append(self._expect(*result, finishing))
        return started

    def _decode(self) -> list[_Pending]:
        work = self._slots.next_decode()
        if not work:
            return []
        for microbatch in work:
            if self._slots.take_stale(microbatch):
                self._executor.set_rows(microbatch, *self._slots.rows(microbatch))
        results = self._executor.decode({m: prefix for m, (prefix, _) in work.items()})
        self._counts["decode_iterations"] += 1
        started = []
        for microbatch, (_, rows) in work.items():
            for sequence, _ in rows:
                sequence.dispatched += 1
            started.append(self._expect(*results[microbatch], rows))
        return started

    def _expect(
        self, ids: Rows, logprobs: Rows, rows: list[tuple[RunningSequence, int]]
    ) -> _Pending:
        """Start the copy to the host and free slots whose last token is now on its way."""
        wanted = any(sequence.params.logprobs for sequence, _ in rows)
        ids.copy_to_host_async()
        if wanted:
            logprobs.copy_to_host_async()
        for sequence, _ in rows:
            if sequence.dispatched >= sequence.limit:
                self._slots.release(sequence)
        return _Pending(ids, logprobs if wanted else None, rows)

    def _record(self, pending: list[_Pending]) -> None:
        for part in pending:
            ids = np.asarray(part.ids)
            logprobs = None if part.logprobs is None else np.asarray(part.logprobs)
            now = time.perf_counter()
            for sequence, row in part.rows:
                if sequence.finished:
                    continue
                asked = sequence.params.logprobs
                logprob = float(logprobs[row]) if asked and logprobs is not None else None
                sequence.accept(int(ids[row]), logprob, now)
                self._counts["generated_tokens"] += 1
                if sequence.finished:
                    self._counts["requests_finished"] += 1
                    self._slots.release(sequence)
