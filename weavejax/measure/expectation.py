"""What a profile says a plan will do on the devices it is about to run on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from weavejax.measure.machine import IN_PROCESS, profile_cluster
from weavejax.measure.occupied import occupied
from weavejax.plan import Plan
from weavejax.planner.predict import Predictor
from weavejax.planner.round_trip import round_trip_time
from weavejax.planner.simulator import simulate_schedule
from weavejax.prediction import Prediction
from weavejax.profiles.estimator import Profile
from weavejax.schedule import Run, Schedule, Send
from weavejax.span import Span


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """Predicted figures of a plan and the model of sharing they rest on."""

    plan: Plan
    """With the cluster its links come from."""
    prediction: Prediction
    schedule: Schedule
    compute_s: tuple[float, ...]
    """``[N]`` each stage occurrence, for one microbatch, with what moves take from its group."""
    move_s: tuple[float, ...]
    """``[N]`` the boundary after each occurrence, for one microbatch."""
    shared: bool
    """The groups compute on the same cores: one action after the other."""

    @property
    def round_trip_time_s(self) -> float:
        return self.prediction.round_trip_time_s

    @property
    def how(self) -> str:
        """The model of time, for people."""
        if self.shared:
            return "groups share devices: predicted as one after the other"
        return "groups have devices of their own: predicted as overlapping"

    def spans(self, iterations: int) -> tuple[Span, ...]:
        """The first iterations as a timeline."""
        if self.shared:
            return sequential_spans(self.schedule, self.compute_s, self.move_s, iterations)
        return simulate_schedule(
            self.schedule, self.compute_s, self.move_s, iterations=iterations
        ).spans


def expect(
    plan: Plan,
    profile: Profile,
    *,
    shared: bool,
    local: Sequence[tuple[int, int]] = (),
    link: str = IN_PROCESS,
) -> Expectation:
    """Predict a plan as it will run here.

    Args:
        plan: predicted on its own cluster, or on the profile's devices where it has none.
        profile: latencies.
        shared: whether the groups compute on the same cores. A round trip then takes every stage
            and every move of every microbatch, one after the other.
        local: pairs of groups that live on the same devices, between which nothing moves.
        link: which of the profile's links moves take, for a plan without a cluster; what it keeps
            its ends busy counts as compute (:mod:`weavejax.measure.occupied`).
    """
    busy_s = 0.0
    if plan.cluster is None:
        links = [profile.data.devices[group.device].links.get(link) for group in plan.groups]
        busy_s = max((known.busy_s for known in links if known is not None), default=0.0)
        names = [group.device for group in plan.groups]
        plan = plan.replace(cluster=profile_cluster(profile.data, names, link=link))
    predictor = Predictor(plan, profile)
    owners = predictor.schedule.owners
    pairs = zip(owners, (*owners[1:], owners[0]), strict=True)
    moves = tuple(
        0.0 if pair in set(local) else time_s
        for pair, time_s in zip(pairs, predictor.move_s, strict=True)
    )
    prediction = predictor.prediction()
    compute = tuple(predictor.compute_s)
    if busy_s:
        compute, moves = occupied(compute, moves, owners, busy_s)
        round_trip_s = round_trip_time(compute, moves, owners, plan.microbatches)
        prediction = _stretched(prediction, round_trip_s)
    if shared:
        total_s = plan.microbatches * (sum(compute) + sum(moves))
        prediction = _stretched(prediction, total_s)
    return Expectation(
        plan=plan,
        prediction=prediction,
        schedule=predictor.schedule,
        compute_s=compute,
        move_s=moves,
        shared=shared,
    )


def _stretched(prediction: Prediction, round_trip_s: float) -> Prediction:
    """The same work in a longer or shorter round trip."""
    groups = tuple(
        dataclasses.replace(
            group,
            busy_fraction=group.busy_fraction * prediction.round_trip_time_s / round_trip_s,
        )
        for group in prediction.groups
    )
    return dataclasses.replace(
        prediction,
        round_trip_time_s=round_trip_s,
        groups=groups,
        occupancy=sum(group.busy_fraction for group in groups) / len(groups),
    )


def sequential_spans(
    schedule: Schedule, compute_s: Sequence[float], move_s: Sequence[float], iterations: int
) -> tuple[Span, ...]:
    """The schedule's actions one after the other, as groups that share their cores run them.

    Its length over the iterations is the steady state's round-trip time: nothing overlaps.
    """
    owners, spans, now_s = schedule.owners, [], 0.0
    for iteration in range(iterations):
        for group, action in schedule.actions:
            if not isinstance(action, (Run, Send)):
                continue  # what was sent is received
            index = action.stage if isinstance(action, Run) else action.boundary
            took_s = compute_s[index] if isinstance(action, Run) else move_s[index]
            common = {
                "start_s": now_s,
                "end_s": now_s + took_s,
                "microbatch": action.microbatch,
                "occurrence": index,
                "iteration": iteration,
            }
            now_s += took_s
            where = f"{index} mb{action.microbatch}"
            if isinstance(action, Run):
                spans.append(Span(name=f"run stage {where}", kind="compute", group=group, **common))
                continue
            target = owners[(index + 1) % len(owners)]
            spans.append(Span(name=f"send boundary {where}", kind="send", group=group, **common))
            spans.append(
                Span(name=f"receive boundary {where}", kind="receive", group=target, **common)
            )
    return tuple(spans)
