"""A tape: every tensor of a pass, operator by operator, with each group's own weights.

The operators of a plan run one at a time on the group that owns them and under its parallelism,
so that a difference can be pinned on one operator of one group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import numpy as np

from weavejax.measure.forced import chunk_batches
from weavejax.measure.windows import bind_windows
from weavejax.models.loading import Model
from weavejax.runtime.batches import greedy_rows
from weavejax.runtime.binding import StageBinding
from weavejax.runtime.executor import Executor
from weavejax.runtime.group import GroupRunner
from weavejax.runtime.stage import StageShape


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What one operator gave out in one pass over all slots."""

    operator: str
    group: int
    phase: str
    """``prefill`` or ``decode``"""
    tensors: dict[str, np.ndarray]
    """Name to ``[slots, tokens, ...]``."""


def record_tape(executor: Executor, model: Model, tokens: np.ndarray) -> Iterator[Entry]:
    """The prompt in one chunk, then its last token once more by decoding, operator by operator.

    Args:
        executor: whose weights and devices to use; its caches stay as they are.
        model: what it runs.
        tokens: ``[slots, length]``; all but the last token of a row are prefilled.
    """
    recorder = _TapeRecorder(executor, model)
    length = tokens.shape[1] - 1
    yield from recorder.prefill(tokens[:, :length])
    yield from recorder.decode(tokens[:, length], length)


class _TapeRecorder:
    def __init__(self, executor: Executor, model: Model) -> None:
        self.executor = executor
        self.windows: list[StageBinding] = []
        self.runners: list[GroupRunner] = []
        owner_of = {
            index: owner for owner, group in enumerate(executor.groups) for index in group.operators
        }
        for owner, original in enumerate(executor.groups):
            windows = [
                window
                for window in bind_windows(model.config, original.group.parallelism, 1, owner=owner)
                if owner_of[window.operators[0].index] == owner
            ]
            runner = GroupRunner(
                original.group,
                windows,
                original.mesh,
                executor.cells,
                executor.programs,
                executor.chunks,
            )
            runner.weights = original.weights
            runner.allocate()
            self.runners.append(runner)
            self.windows += windows
        self.windows.sort(key=lambda window: window.index)

    def prefill(self, tokens: np.ndarray) -> Iterator[Entry]:
        cells, length = self.executor.cells, tokens.shape[1]
        chunk = self.executor.chunks[-1]
        batches = chunk_batches(cells, tokens, 0, length, chunk, length)
        shape = self.runners[0].programs.shape(chunk, length, prefill=True)
        held: list[dict[str, np.ndarray]] = [{} for _ in batches]
        for window in self.windows:
            for (batch, _), known in zip(batches, held, strict=True):
                self.runners[window.owner].set_chunk(batch)
                self._run(window, batch.microbatch, shape, known)
            order = np.argsort([slot for _, slots in batches for slot in slots])
            cut = [{name: value[:, :length] for name, value in known.items()} for known in held]
            yield from _entries(window, "prefill", cut, order)

    def decode(self, tokens: np.ndarray, position: int) -> Iterator[Entry]:
        cells = self.executor.cells
        rows, microbatches = cells.microbatch_rows, range(cells.microbatches)
        shape = self.runners[0].programs.shape(1, position + 1, prefill=False)
        ones = np.ones(rows, np.int32)
        held: list[dict[str, np.ndarray]] = [{} for _ in microbatches]
        for microbatch in microbatches:
            for runner in self.runners:
                if runner.stages:
                    runner.set_rows(microbatch, ones * position, ones, greedy_rows(rows))
            first = self.runners[self.windows[0].owner]
            part = tokens[microbatch * rows :][:rows].astype(np.int32)
            first.held[microbatch]["ids"] = first.put(part, wire=True)
        for window in self.windows:
            for microbatch in microbatches:
                self._run(window, microbatch, shape, held[microbatch])
            yield from _entries(window, "decode", held, np.arange(rows * len(held)))

    def _run(
        self, window: StageBinding, microbatch: int, shape: StageShape, known: dict[str, np.ndarray]
    ) -> None:
        """Bring the inputs from the host, run the operator, take its outputs back."""
        runner = self.runners[window.owner]
        tensors = runner.tensors(microbatch, shape)
        for tensor in window.reads:
            if tensor.name in known:
                sharding = runner.wire(tensor, shape).sharding
                tensors[tensor.name] = jax.device_put(known[tensor.name], sharding)
        runner.bind_run(window, microbatch, shape)()
        names = [tensor.name for tensor in window.writes]
        if window.embed is not None:
            names.append(window.embed.outputs[0].name)
        known |= {name: np.asarray(tensors[name]) for name in names}


def _entries(
    window: StageBinding, phase: str, held: list[dict[str, np.ndarray]], order: np.ndarray
) -> Iterator[Entry]:
    """What a window gave out: its operator, and ``embed`` before it in the first one."""
    for op in (window.embed, *window.operators):
        if op is not None:
            tensors = {
                tensor.name: np.concatenate([known[tensor.name] for known in held])[order]
                for tensor in op.outputs
            }
            yield Entry(operator=op.name, group=window.owner, phase=phase, tensors=tensors)
