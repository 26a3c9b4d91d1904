"""The loop of one worker: commands in, the schedule's actions in order, results out.

The coordinator numbers the passes (prefill chunks and decode iterations). A worker executes them
one after another by the action list of its group and hears nothing from the coordinator inside
one. What it waits for comes from other workers and is found by (pass, boundary, microbatch,
peer), whatever the order of arrival.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial

import jax
import numpy as np

from weavejax.models.specs import TensorSpec
from weavejax.runtime.batches import PrefillBatch
from weavejax.runtime.binding import StageBinding
from weavejax.runtime.group import GroupRunner
from weavejax.runtime.programs import IDS
from weavejax.runtime.sampling import RowSampling
from weavejax.runtime.stage import StageShape
from weavejax.schedule import Receive, Run, Schedule, Send
from weavejax.workers.frames import Header
from weavejax.workers.inbox import Inbox, StopReplicaError
from weavejax.workers.links import Outlet
from weavejax.workers.moves import Crossing, Moves
from weavejax.workers.progress_report import At, Report
from weavejax.workers.share import RowRoute, Share
from weavejax.workers.timing import time_moves, time_runs

Step = Callable[[], None]
Work = tuple[tuple[int, StageShape], ...]


class Replica:
    """One replica of one device group.

    Args:
        runner: its weights, caches and programs.
        schedule: of the whole plan.
        share: which rows it holds.
        routes: (source group, destination group) to the row routes between them.
        moves: carries rows.
        outlets: connections to the workers it sends to, and ``coordinator``.
        inbox: where commands and rows arrive.
    """

    def __init__(
        self,
        runner: GroupRunner,
        schedule: Schedule,
        share: Share,
        routes: Mapping[tuple[int, int], Sequence[RowRoute]],
        moves: Moves,
        outlets: Mapping[str, Outlet],
        inbox: Inbox,
    ):
        self.runner, self.schedule, self._share = runner, schedule, share
        self._routes, self._moves = routes, moves
        self.outlets, self._inbox = outlets, inbox
        self.group = share.name.group
        self._ring = len(schedule.occurrences) - 1
        self.stages = {stage.index: stage for stage in runner.stages}
        self.ends = {stage.last: stage for stage in runner.stages}
        self._bound: dict[Work, list[Step]] = {}
        self._pass = 0
        self._due: list[deque[tuple[int, PrefillBatch | None, StageShape]]] = [
            deque() for _ in range(schedule.microbatches)
        ]
        """Passes whose sampled ids have not been taken into each microbatch's input yet."""
        self._sources = lru_cache(maxsize=None)(self._find_sources)
        self.head = lru_cache(maxsize=None)(runner.bind_head)
        self._ids_landing = lru_cache(maxsize=None)(partial(self._bind_landing, (IDS,)))
        self._at = At("idle")
        self._steps = 0

    def current_report(self) -> Report:
        """How far it is, sends included; any thread may ask."""
        outlets = list(self.outlets.values())
        unsent = [h for outlet in outlets if "boundary" in (h := outlet.waiting_for or {})]
        sending = min(((h["pass"], h["boundary"], h["microbatch"]) for h in unsent), default=None)
        at, unfinished = self._at, self._moves.unfinished()
        if unfinished is not None:
            (_, boundary, microbatch), peer = unfinished
            at = At("waiting", at.stage, microbatch, boundary, peer)
        return Report(
            **at._asdict(),
            sequence=self._pass,
            sending=None if sending is None else sending[1:],
            steps=self._steps + sum(outlet.sent for outlet in outlets),
        )

    # -- commands ------------------------------------------------------------------------------

    def run(self) -> None:
        """Execute commands until told to stop."""
        commands = {
            "rows": self._set_rows,
            "prefill": self._prefill,
            "decode": self._decode,
            "time runs": lambda header, arrays: self._tell(time_runs(self, header)),
            "time moves": lambda header, arrays: self._tell(time_moves(self, header)),
        }
        try:
            while True:
                header, arrays = self._inbox.next_command()
                self._expect(header["pass"], after=header["do"] != "rows")
                commands[header["do"]](header, arrays)
                self._now(self._at._replace(state="idle"))
        except StopReplicaError:
            return

    def _expect(self, number: int, *, after: bool) -> None:
        """Rows apply before the pass they name; passes come in order, none twice."""
        if number != self._pass + 1:
            raise RuntimeError(
                f"commands must name the next pass, {self._pass + 1} here, got {number}"
            )
        if after:
            self._pass = number

    def _set_rows(self, header: Header, arrays: list[np.ndarray]) -> None:
        starts, lengths, *sampling = (self._share.mine(array) for array in arrays)
        self.runner.set_rows(header["microbatch"], starts, lengths, RowSampling(*sampling))

    def _prefill(self, header: Header, arrays: list[np.ndarray]) -> None:
        tokens, starts, lengths, slots, done, *sampling = map(self._share.mine, arrays)
        batch = PrefillBatch(
            microbatch=header["microbatch"],
            tokens=tokens,
            starts=starts,
            lengths=lengths,
            slots=slots,
            done=done,
            sampling=RowSampling(*sampling),
        )
        # The prefix of the whole pass: replicas of one plan run the same programs.
        shape = self.runner.programs.shape(tokens.shape[1], header["prefix"], prefill=True)
        self.runner.set_chunk(batch)
        self._execute(((batch.microbatch, shape),))
        if header["sample"]:
            if self.group == self.schedule.owners[-1]:
                self._sample(batch.microbatch, shape, batch)
            self._await_ids(batch.microbatch, shape, batch)

    def _decode(self, header: Header, arrays: list[np.ndarray]) -> None:
        shape = self.runner.programs.shape
        prefixes = {microbatch: prefix for microbatch, prefix in header["prefixes"]}
        self._execute(tuple((m, shape(1, prefixes[m], prefill=False)) for m in sorted(prefixes)))
        for microbatch, prefix in prefixes.items():
            self.runner.advance(microbatch)
            self._await_ids(microbatch, shape(1, prefix, prefill=False), None)

    def _tell(self, seconds: list[float]) -> None:
        self.outlets["coordinator"].put({"pass": self._pass, "times": seconds}, list)

    def _execute(self, work: Work) -> None:
        steps = self._bound.get(work)
        if steps is None:
            steps = self._bound[work] = self._bind(work)
        for step in steps:
            step()

    def _now(self, at: At) -> None:
        """Note where it is; a worker is asked rarely and does this for every action."""
        self._at = at
        self._steps += 1

    # -- binding -------------------------------------------------------------------------------

    def _bind(self, work: Work) -> list[Step]:
        """The actions of this group for the microbatches of a pass, each as one call."""
        shapes = dict(work)
        steps: list[Step] = []
        for action in self.schedule.group_actions(self.group):
            microbatch, shape = action.microbatch, shapes.get(action.microbatch)
            if shape is None:
                continue
            if isinstance(action, Run) and action.stage in self.stages:
                steps.append(self.bind_run(self.stages[action.stage], microbatch, shape))
            elif isinstance(action, Receive) and action.boundary != self._ring:
                steps.append(self.bind_receive(action.boundary, microbatch, shape))
            elif isinstance(action, Send) and action.boundary != self._ring:
                forgets = self.ends[action.boundary].forgets
                steps.append(self.bind_send(action.boundary, microbatch, shape, forgets))
        return steps

    def bind_run(self, stage: StageBinding, microbatch: int, shape: StageShape) -> Step:
        """Compute a stage, taking ids in before the first and sampling after the last."""
        run = self.runner.bind_run(stage, microbatch, shape)
        held = self.runner.tensors(microbatch, shape)
        keeps = self.schedule.interfaces[stage.last] or stage.head is not None
        forgets = () if keeps else stage.forgets
        takes_ids = stage.embed is not None and not shape.prefill
        samples = stage.head is not None and not shape.prefill

        at = At("running", stage.index, microbatch)

        def step() -> None:
            self._now(at)
            if takes_ids:
                self._take_ids(microbatch)
            run()
            for name in forgets:
                held.pop(name, None)
            if samples:
                self._sample(microbatch, shape, None)

        return step

    def bind_receive(self, boundary: int, microbatch: int, shape: StageShape) -> Step:
        """Wait for what crosses a boundary and place it on the devices."""
        tensors = self.schedule.interfaces[boundary]
        land = self._bind_landing(tensors, shape)
        source = self.schedule.owners[boundary]
        held = self.runner.tensors(microbatch, shape)
        names = [tensor.name for tensor in tensors]

        def step() -> None:
            for name, value in zip(names, land(boundary, microbatch, self._pass), strict=True):
                held[name] = value

        self._sources(source)  # a missing route shows at once
        return step

    def bind_send(
        self, boundary: int, microbatch: int, shape: StageShape, forgets: Sequence[str] = ()
    ) -> Step:
        """Hand what crosses a boundary to the links; returns before it has been computed."""
        names = [tensor.name for tensor in self.schedule.interfaces[boundary]]
        held, owners = self.runner.tensors(microbatch, shape), self.schedule.owners
        routes = self._destinations(owners[(boundary + 1) % len(owners)])

        def step() -> None:
            arrays = [held[name] for name in names]
            self._moves.send(arrays, routes, Crossing(self._pass, boundary, microbatch))
            for name in forgets:
                held.pop(name, None)

        return step

    # -- moves ---------------------------------------------------------------------------------

    def _find_sources(self, group: int) -> list[RowRoute]:
        return [r for r in self._routes[group, self.group] if r.destination == self._share.name]

    def _destinations(self, group: int) -> list[RowRoute]:
        return [r for r in self._routes[self.group, group] if r.source == self._share.name]

    def _bind_landing(
        self, tensors: Sequence[TensorSpec], shape: StageShape
    ) -> Callable[[int, int, int], list[jax.Array]]:
        """A function that takes in the rows of a boundary."""
        wires = [self.runner.wire(tensor, shape) for tensor in tensors]
        owners = self.schedule.owners

        def land(boundary: int, microbatch: int, number: int) -> list[jax.Array]:
            crossing, routes = (
                Crossing(number, boundary, microbatch),
                self._sources(owners[boundary]),
            )
            arrays = self._moves.receive(wires, routes, crossing, partial(self._wait, crossing))
            self._now(At("running", self._at.stage, self._at.microbatch))
            return arrays

        return land

    def _wait(self, crossing: Crossing, peer: str) -> None:
        _, boundary, microbatch = crossing
        self._now(At("waiting", self._at.stage, microbatch, boundary, peer))

    # -- sampled ids ---------------------------------------------------------------------------

    def _sample(self, microbatch: int, shape: StageShape, batch: PrefillBatch | None) -> None:
        """Sample; the ids go to the coordinator and to the first group."""
        ids, logprobs = self.head(microbatch, shape)()
        header = {"pass": self._pass, "boundary": self._ring, "microbatch": microbatch}
        self.outlets["coordinator"].put(header, lambda: [np.asarray(ids), np.asarray(logprobs)])
        first = self.schedule.owners[0]
        if self.group == first:
            self._accept_ids(microbatch, shape, batch, ids)
        else:
            crossing = Crossing(self._pass, self._ring, microbatch)
            self._moves.send([ids], self._destinations(first), crossing)

    def _await_ids(self, microbatch: int, shape: StageShape, batch: PrefillBatch | None) -> None:
        """Note that a pass's ids will come from the last group; they are taken when needed."""
        if self.group == self.schedule.owners[0] != self.schedule.owners[-1]:
            self._due[microbatch].append((self._pass, batch, shape))

    def _take_ids(self, microbatch: int) -> None:
        """Take in the ids that earlier passes sampled for a microbatch, in their order."""
        due = self._due[microbatch]
        while due:
            number, batch, shape = due.popleft()
            [ids] = self._ids_landing(shape)(self._ring, microbatch, number)
            self._accept_ids(microbatch, shape, batch, ids)

    def _accept_ids(
        self, microbatch: int, shape: StageShape, batch: PrefillBatch | None, ids: jax.Array
    ) -> None:
        if batch is None:
            self.runner.held[microbatch]["ids"] = ids
        else:
            self.runner.merge_ids(batch, shape, ids)
