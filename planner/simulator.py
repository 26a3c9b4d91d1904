"""Event-level simulation of a schedule: the action lists, played against the clock.

Every group has three servers, each taking its actions in the order of its list: the compute
engine its ``Run``s, the egress channel its ``Send``s, the ingress channel its ``Receive``s. A
move needs both channels free and both ends at that action; nothing else waits for it. This is
the form of the round-trip time that draws a trace; :mod:`weavejax.planner.round_trip` is the
same definition as a recurrence.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from weavejax.planner.round_trip import check_chain
from weavejax.planner.steady_state import settled_round_trip
from weavejax.schedule import Receive, Run, Schedule, Send
from weavejax.span import Span

Job = tuple[int, int, int]
"""(iteration, stage occurrence or boundary, microbatch)"""


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """What a schedule did, from an idle start."""

    spans: tuple[Span, ...]
    """In order of their start; moves appear at both ends, as ``send`` and ``receive``."""
    round_trip_time_s: float
    """Seconds per decode iteration in steady state."""
    busy_s: tuple[float, ...]
    """Compute seconds of each group per iteration."""

    @property
    def bubble_s(self) -> tuple[float, ...]:
        """Seconds per iteration in which each group's compute waits."""
        return tuple(self.round_trip_time_s - busy for busy in self.busy_s)


def simulate_schedule(
    schedule: Schedule,
    compute_s: Sequence[float],
    move_s: Sequence[float],
    *,
    iterations: int | None = None,
) -> Simulation:
    """Play a schedule.

    Args:
        schedule: its action list is what runs.
        compute_s: ``[N]`` seconds of each stage occurrence for one microbatch.
        move_s: ``[N]`` seconds of the move over the boundary after each occurrence.
        iterations: decode iterations to draw spans of; by default as many as settle the
            round-trip time.

    Raises:
        ValueError: times that do not match the schedule, or iterations below 1.
    """
    owners = schedule.owners
    check_chain(compute_s, move_s, owners, schedule.microbatches)
    if len(compute_s) != len(owners):
        raise ValueError(
            f"one time per stage occurrence is needed, {len(owners)}, got {len(compute_s)}"
        )
    if iterations is not None and iterations < 1:
        raise ValueError(f"iterations must be at least 1, got {iterations}")
    enough = 3 * len(set(owners)) + schedule.microbatches
    player = _Player(
        schedule=schedule,
        compute_s=tuple(map(float, compute_s)),
        move_s=tuple(map(float, move_s)),
        iterations=max(enough, iterations or 0),
    )
    player.play()
    busy = np.zeros(max(owners) + 1)
    np.add.at(busy, np.asarray(owners), np.asarray(compute_s, dtype=float))
    spans = (s for s in player.spans if iterations is None or s.iteration < iterations)
    return Simulation(
        spans=tuple(sorted(spans, key=lambda s: (s.start_s, s.end_s, s.group, s.kind))),
        round_trip_time_s=settled_round_trip(player.states()),
        busy_s=tuple(float(seconds) * schedule.microbatches for seconds in busy),
    )


@dataclass
class _Player:
    """Queues, clocks and the event heap of one run."""

    schedule: Schedule
    compute_s: tuple[float, ...]
    move_s: tuple[float, ...]
    iterations: int
    spans: list[Span] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.owners = self.schedule.owners
        count = len(self.owners)
        kinds = {"compute": Run, "egress": Send, "ingress": Receive}
        self.queue: dict[tuple[str, int], list[Job]] = {}
        for group, action in self.schedule.actions:
            for channel, kind in kinds.items():
                if isinstance(action, kind):
                    where = action.stage if isinstance(action, Run) else action.boundary
                    job = (0, where, action.microbatch)
                    self.queue.setdefault((channel, group), []).append(job)
        for (channel, _), jobs in self.queue.items():
            if channel == "ingress":  # the first ids are there: the last boundary comes last
                jobs.sort(key=lambda job: job[1])
        self.done = dict.fromkeys(self.queue, 0)  # jobs finished
        self.free = dict.fromkeys(self.queue, True)
        self.end_s: dict[tuple[str, int], list[float]] = {key: [] for key in self.queue}
        self.arrived: dict[Job, float] = {
            (0, 0, mb): 0.0 for mb in range(self.schedule.microbatches)
        }
        self.computed: set[Job] = set()
        self.heap: list[tuple[float, int, int, tuple[str, Job]]] = []
        self.counter = 0
        self.last = count - 1

    def play(self) -> None:
        now_s = 0.0
        self._start_all(now_s)
        while self.heap:
            now_s, _, _, (what, job) = heapq.heappop(self.heap)
            iteration, index, mb = job
            owner, target = self._ends(index)
            if what == "computed":
                self._finish("compute", owner, now_s)
                self.computed.add(job)
                if owner == target:
                    self._push(now_s + self.move_s[index], 1, "arrived", job)
            else:
                if owner != target:
                    self._finish("egress", owner, now_s)
                    self._finish("ingress", target, now_s)
                self.arrived[self._next_stage(iteration, index, mb)] = now_s
            self._start_all(now_s)

    def states(self) -> list[list[float]]:
        """Times at which servers become free and microbatches arrive, iteration by iteration."""
        rows = []
        for iteration in range(self.iterations + 1):
            row = []
            for key, ends in self.end_s.items():
                row.append(ends[iteration * len(self.queue[key]) - 1] if iteration else 0.0)
            row += [self.arrived[iteration, 0, mb] for mb in range(self.schedule.microbatches)]
            rows.append(row)
        return rows

    def _ends(self, boundary: int) -> tuple[int, int]:
        return self.owners[boundary], self.owners[(boundary + 1) % len(self.owners)]

    def _next_stage(self, iteration: int, index: int, mb: int) -> Job:
        return (iteration + 1, 0, mb) if index == self.last else (iteration, index + 1, mb)

    def _head(self, channel: str, group: int) -> Job | None:
        """The job a server takes next, or None when it is busy or through."""
        key = (channel, group)
        if not self.free[key]:
            return None
        lap, place = divmod(self.done[key], len(self.queue[key]))
        _, index, mb = self.queue[key][place]
        return (lap, index, mb) if lap < self.iterations else None

    def _start_all(self, now_s: float) -> None:
        for channel, group in self.queue:
            job = self._head(channel, group)
            if job is None:
                continue
            if channel == "compute" and job in self.arrived:
                self._begin("compute", group, job, now_s, now_s + self.compute_s[job[1]])
                self._push(now_s + self.compute_s[job[1]], 0, "computed", job)
            elif channel == "egress" and job in self.computed:
                target = self._ends(job[1])[1]
                if self._head("ingress", target) == job:
                    end_s = now_s + self.move_s[job[1]]
                    self._begin("egress", group, job, now_s, end_s)
                    self._begin("ingress", target, job, now_s, end_s)
                    self._push(end_s, 1, "arrived", job)

    def _begin(self, channel: str, group: int, job: Job, start_s: float, end_s: float) -> None:
        iteration, index, mb = job
        self.free[channel, group] = False
        kind = {"compute": "compute", "egress": "send", "ingress": "receive"}[channel]
        place = "stage" if channel == "compute" else "boundary"
        self.spans.append(
            Span(
                name=f"{'run' if channel == 'compute' else kind} {place} {index} mb{mb}",
                kind=kind,  # type: ignore[arg-type]
                group=group,
                start_s=start_s,
                end_s=end_s,
                microbatch=mb,
                occurrence=index,
                iteration=iteration,
            )
        )

    def _finish(self, channel: str, group: int, now_s: float) -> None:
        self.free[channel, group] = True
        self.done[channel, group] += 1
        self.end_s[channel, group].append(now_s)

    def _push(self, time_s: float, priority: int, what: str, job: Job) -> None:
        heapq.heappush(self.heap, (time_s, priority, self.counter, (what, job)))
        self.counter += 1
