"""Timing operators as they run inside a decode iteration.

Three walks over the whole model alternate, each with every weight, cache and position of a real
iteration: stages of one operator waited for one by one; the same without waiting; and longer
stages without waiting. The first tells the operators apart, the second says what an operator
costs as a stage of its own, the third what a stage costs beside its operators. Microbatches
follow each other through every stage as in a plan, since the next one may find the weights in a
cache: on some processors only the third one does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from weavejax.measure.alternating import Alternating
from weavejax.measure.point import Point, Samples, solve_point
from weavejax.measure.typical import typical
from weavejax.measure.windows import bind_windows
from weavejax.merging import MERGED
from weavejax.models.loading import Model
from weavejax.models.sequence import operator_sequence
from weavejax.plan import DeviceGroup
from weavejax.profiles.operator_key import operator_key
from weavejax.runtime.batches import greedy_rows
from weavejax.runtime.binding import StageBinding
from weavejax.runtime.cells import Cells
from weavejax.runtime.group import GroupRunner
from weavejax.runtime.memory import Weights
from weavejax.runtime.programs import shared_programs

MICROBATCHES = 2
"""Where no plan says how many: the first is told from the next."""
Bound = list[tuple[int, Callable[[], Sequence[Any]]]]


class Calibrator:
    """Times every operator of a model at one number of rows and one context.

    Args:
        model: what to time.
        group: parallelism; one replica of it holds ``rows`` rows of each microbatch.
        mesh: devices of one replica.
        rows: of a microbatch.
        context: capacity of the caches, and where every row stands.
        dtype: of weights and caches.
        microbatches: that follow each other.
        other: devices of a second replica, to time moves to and fro.
        weights: of an earlier calibrator of the same model, parallelism and meshes.
    """

    def __init__(
        self,
        model: Model,
        group: DeviceGroup,
        mesh: Mesh,
        *,
        rows: int,
        context: int,
        dtype: str,
        microbatches: int = MICROBATCHES,
        other: Mesh | None = None,
        weights: Sequence[Weights] = (),
    ) -> None:
        self.rows, self.context, self.microbatches = rows, context, microbatches
        cells = Cells(
            group.attention_data_parallel, rows // group.attention_data_parallel, microbatches
        )
        config = model.config
        programs = shared_programs(config, context, dtype)
        per_length, base = [], 0
        lengths = walked_lengths(microbatches)
        for length in lengths:
            per_length.append(bind_windows(config, group.parallelism, length, base=base))
            base += len(per_length[-1])
        every = [stage for stages in per_length for stage in stages]
        self.runners = [GroupRunner(group, every, mesh, cells, programs, (1,))]
        if other is not None:
            odd = per_length[0][1::2]
            self.runners.append(GroupRunner(group, odd, other, cells, programs, (1,)))
        for place, runner in enumerate(self.runners):
            if place < len(weights):
                runner.weights = weights[place]
                runner.allocate()
            else:
                runner.load(model)
        self.walks = [self._bind(stages) for stages in per_length]
        self.alternating = None
        if other is not None:
            shape = self.runners[0].programs.shape(1, context, prefill=False)
            self.alternating = Alternating(config, per_length[0], self.runners, shape, microbatches)
        specs = {op.index: op for op in operator_sequence(config)}
        singles = per_length[0]
        self.keys = [operator_key(specs[stage.operators[0].index], group) for stage in singles]
        ends = (singles[0].embed, singles[-1].head)
        self.end_keys = [operator_key(specs[op.index], group) for op in ends if op is not None]
        self._samples = Samples(walk_s=[[] for _ in lengths])

    @property
    def weights(self) -> list[Weights]:
        """For other calibrators on the same devices."""
        return [runner.weights for runner in self.runners]

    @property
    def runner(self) -> GroupRunner:
        return self.runners[0]

    def sample(self, iterations: int = 2) -> None:
        """Walk each way once more; alternate this between calibrators and plans."""
        for number, walk in enumerate(self.walks):
            self._reset(iterations + 1)
            self._walk(walk)
            jax.block_until_ready(self.runner.held)
            start = time.perf_counter()
            for _ in range(iterations):
                self._walk(walk)
            jax.block_until_ready(self.runner.held)
            self._samples.walk_s[number].append((time.perf_counter() - start) / iterations)
        if self.alternating is not None:
            self._reset(iterations + 1)
            self._samples.alternating_s.append(self.alternating.time_s(iterations))
        self._samples.steps_s.append(self._stepwise(self.walks[0]))

    def point(self, last: int | None = None) -> Point:
        """What all samples so far say, or the last few of them."""
        counts = [len(walk.body) for walk in self.walks]
        samples = self._samples.last(last)
        point = solve_point(samples, counts, self.keys, self.end_keys)
        if self.alternating is None:
            return point
        pairs = zip(samples.alternating_s, samples.walk_s[0], strict=True)
        longer_s = float(typical([apart - alone for apart, alone in pairs]))
        count = self.alternating.moves
        return replace(
            point,
            move_s=max(longer_s / count, 0.0),
            move_bytes=self.alternating.moved_bytes / count,
        )

    def iteration_s(self) -> float:
        """Seconds of the first microbatch of an iteration, every operator a stage of its own."""
        time_s = self.point().time_s
        return sum(time_s[key][0] for key in (*self.keys, *self.end_keys))

    # -- walking -------------------------------------------------------------------------------

    def _bind(self, stages: Sequence[StageBinding]) -> _Walk:
        shape = self.runner.programs.shape(1, self.context, prefill=False)
        body, heads = [], []
        for stage in stages:
            for microbatch in range(self.microbatches):
                call = self.runner.bind_run(stage, microbatch, shape)
                body.append(_forgetting(call, self.runner.held[microbatch], stage.forgets))
                if stage.head is not None:
                    heads.append(self.runner.bind_head(microbatch, shape))
        return _Walk(body=body, heads=heads)

    def _walk(self, walk: _Walk) -> None:
        for call in walk.body:
            call()
        for microbatch, head in enumerate(walk.heads):
            self.runner.held[microbatch]["ids"] = head()[0]
            self.runner.advance(microbatch)

    def _stepwise(self, walk: _Walk) -> np.ndarray:
        """Seconds of every call, each waited for: ``[stages + 1, microbatches]``, head last."""
        self._reset(2)
        self._walk(walk)
        jax.block_until_ready(self.runner.held)
        seconds = []
        for call in walk.body:
            start = time.perf_counter()
            jax.block_until_ready(call()[0])
            seconds.append(time.perf_counter() - start)
        for microbatch, head in enumerate(walk.heads):
            start = time.perf_counter()
            self.runner.held[microbatch]["ids"] = jax.block_until_ready(head()[0])
            seconds.append(time.perf_counter() - start)
            self.runner.advance(microbatch)
        return np.array(seconds).reshape(-1, self.microbatches)

    def _reset(self, iterations: int) -> None:
        """Every row active, so that the last of the iterations fills the context."""
        ones = np.ones(self.rows, np.int32)
        start = ones * max(0, self.context - iterations - 1)
        for microbatch in range(self.microbatches):
            for runner in self.runners:
                runner.set_rows(microbatch, start, ones, greedy_rows(self.rows))


@dataclass(frozen=True)
class _Walk:
    body: list[Callable[[], Sequence[Any]]]
    """Stage-major: every stage for each microbatch."""
    heads: list[Callable[[], Sequence[Any]]]


def walked_lengths(microbatches: int) -> tuple[int, ...]:
    """Operators of the stages that are walked: as long as programs of plans get.

    Examples:
        >>> walked_lengths(1), walked_lengths(4)
        ((1, 4, 20), (1, 2, 4))
    """
    return (1, 4, MERGED) if microbatches == 1 else (1, 2, 4)


def _forgetting(
    call: Callable[[], Sequence[Any]], held: dict[str, Any], names: Sequence[str]
) -> Callable[[], Sequence[Any]]:
    """A stage that lets go of what nothing reads later, as the executor's do."""

    def run() -> Sequence[Any]:
        results = call()
        for name in names:
            held.pop(name, None)
        return results

    return run
