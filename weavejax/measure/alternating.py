"""Every operator on the other device than the one before: what a move costs inside an iteration.

A move keeps both ends busy beside the copy itself: the host submits it, and the next program waits
for it. So it is timed as what it adds to a whole iteration, and not by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from weavejax.models.config import ModelConfig
from weavejax.models.sequence import operator_sequence
from weavejax.models.specs import TensorSpec
from weavejax.runtime.binding import StageBinding
from weavejax.runtime.group import GroupRunner
from weavejax.runtime.programs import IDS
from weavejax.runtime.stage import StageShape
from weavejax.runtime.transport import InProcessTransport, Move
from weavejax.schedule import boundary_interfaces


class Alternating:
    """A walk over single operators that changes the device after each.

    Args:
        config: the model.
        singles: its operators as windows of one.
        runners: of two devices; the first runs even windows, the second odd ones.
        shape: of the decode pass.
        microbatches: that follow each other.
    """

    def __init__(
        self,
        config: ModelConfig,
        singles: Sequence[StageBinding],
        runners: Sequence[GroupRunner],
        shape: StageShape,
        microbatches: int,
    ) -> None:
        self.runners = runners
        embed, *layers, head = operator_sequence(config)
        first, *middle, last = layers
        stages = ((embed, first), *((op,) for op in middle), (last, head))
        owners = tuple(place % 2 for place in range(len(stages)))
        interfaces = boundary_interfaces(stages, owners)
        self.moved_bytes = 0
        self.calls: list[Callable[[], Any]] = []
        for place, window in enumerate(singles):
            for microbatch in range(microbatches):
                self.calls.append(runners[place % 2].bind_run(window, microbatch, shape))
                if place + 1 < len(singles):
                    self.calls.append(self._send(interfaces[place], place % 2, microbatch, shape))
        end = (len(singles) - 1) % 2
        self.heads = [runners[end].bind_head(m, shape) for m in range(microbatches)]
        self.ids_move = self._bind((IDS,), end, 0, shape)
        self.moves = microbatches * len(singles)

    def time_s(self, iterations: int) -> float:
        """Seconds of an iteration, after one that is not counted."""
        self._walk()
        self._wait()
        start = time.perf_counter()
        for _ in range(iterations):
            self._walk()
        self._wait()
        return (time.perf_counter() - start) / iterations

    def _walk(self) -> None:
        for call in self.calls:
            call()
        for microbatch, head in enumerate(self.heads):
            [self.runners[0].held[microbatch]["ids"]] = self.ids_move([head()[0]])
            for runner in self.runners:
                runner.advance(microbatch)

    def _wait(self) -> None:
        jax.block_until_ready([runner.held for runner in self.runners])

    def _send(
        self, tensors: Sequence[TensorSpec], side: int, microbatch: int, shape: StageShape
    ) -> Callable[[], Any]:
        move = self._bind(tensors, side, 1 - side, shape)
        here, there = (self.runners[end].held[microbatch] for end in (side, 1 - side))
        names = [tensor.name for tensor in tensors]

        def send() -> None:
            for name, value in zip(names, move([here[name] for name in names]), strict=True):
                there[name] = value

        return send

    def _bind(
        self, tensors: Sequence[TensorSpec], side: int, target: int, shape: StageShape
    ) -> Move:
        kinds = [self.runners[side].wire(tensor, shape) for tensor in tensors]
        places = [self.runners[target].wire(tensor, shape).sharding for tensor in tensors]
        self.moved_bytes += sum(kind.size * kind.dtype.itemsize for kind in kinds)
        return InProcessTransport().bind(kinds, [place for place in places if place is not None])
