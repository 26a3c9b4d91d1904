"""What a plan promises: round-trip time, cost, occupancy, traffic and memory.

Everything is computed from the plan (which carries the model, the cluster and the groups) and the
profile it names, so a plan read from JSON gives the numbers it was written with.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weavejax.meshes.cluster import Cluster
from weavejax.meshes.devices import device_spec
from weavejax.models.config import ModelConfig
from weavejax.models.costs import interface_bytes
from weavejax.plan import Plan
from weavejax.planner.cost import usd_per_million_tokens
from weavejax.planner.latency import (
    LatencyProfile,
    class_times_s,
    element_bytes,
    with_cluster,
    with_microbatches,
)
from weavejax.planner.memory import (
    ReplicaMemory,
    replica_memory,
    widest_interfaces,
)
from weavejax.planner.round_trip import round_trip_time
from weavejax.planner.simulator import Simulation, simulate_schedule
from weavejax.planner.template_facts import OperatorTable, operator_table, template_facts
from weavejax.planner.transfer import is_internode, move_time_s
from weavejax.prediction import GroupPrediction, MovePrediction, Prediction, StagePrediction
from weavejax.profiles.estimator import load_profile
from weavejax.profiles.schema import MEASURED, SOURCES
from weavejax.schedule import Schedule, build_schedule


def evaluate(plan: Plan, profile: LatencyProfile | None = None) -> Prediction:
    """Predict a plan in steady state.

    Args:
        plan: carries model, workload, cluster and groups.
        profile: latencies; by default the profile the plan names.

    Returns:
        Round-trip time, dollars per million tokens, occupancy, inter-node bytes per token, memory
        by group, and the time of every stage and move with its source.

    Raises:
        PlanError: the plan does not fit its model.
        ValueError: no profile is given or named, or the named one has changed.
    """
    return Predictor(plan, profile).prediction()


def simulate(
    plan: Plan, profile: LatencyProfile | None = None, *, iterations: int = 4
) -> Simulation:
    """Spans of the first iterations of a plan from an idle start, for a trace."""
    predictor = Predictor(plan, profile)
    return simulate_schedule(
        predictor.schedule, predictor.compute_s, predictor.move_s, iterations=iterations
    )


def plan_cluster(plan: Plan) -> Cluster:
    """The plan's cluster; without one, known devices at their default prices and links."""
    if plan.cluster is not None:
        return plan.cluster
    needed: dict[str, int] = {}
    for group in plan.groups:
        needed[group.device] = needed.get(group.device, 0) + group.num_devices
    return Cluster(devices=tuple((device_spec(name), count) for name, count in needed.items()))


def plan_profile(plan: Plan, profile: LatencyProfile | None) -> LatencyProfile:
    """The given profile, or the one the plan names, checked against its hash."""
    if profile is not None:
        return profile
    if plan.profile is None:
        raise ValueError(
            "a prediction needs latencies: the plan names no profile, so give one as "
            "profile=... (on the command line: --profile)"
        )
    found = load_profile(plan.profile.name)
    if found.hash != plan.profile.hash:
        raise ValueError(
            f"the plan was made with profile {plan.profile.name!r} of hash {plan.profile.hash}, "
            f"the one found has hash {found.hash}; give the profile to use as profile=... "
            "(on the command line: --profile)"
        )
    return found


class Predictor:
    """The pieces of one prediction, computed once."""

    def __init__(self, plan: Plan, profile: LatencyProfile | None) -> None:
        self.plan = plan
        self.config = ModelConfig.from_dict(plan.model.config)
        self.cluster = plan_cluster(plan)
        known = with_cluster(plan_profile(plan, profile), self.cluster)
        self.profile = with_microbatches(known, plan.microbatches)
        self.dtype_bytes = element_bytes(known)
        self.schedule: Schedule = build_schedule(plan, self.config)
        self.table: OperatorTable = operator_table(self.config, self.dtype_bytes)
        self.facts = template_facts(self.config, plan.template, len(plan.groups), self.dtype_bytes)
        answers = [
            class_times_s(
                self.profile,
                self.table,
                group,
                [group.resident_batch // plan.microbatches],
                plan.workload.context,
                plan.microbatches,
            )
            for group in plan.groups
        ]
        self.class_s = np.stack([times[:, 0] for times, _ in answers])
        self.codes = np.stack([codes[:, 0] for _, codes in answers])
        self.by_class_s = self.facts.stage_counts * self.class_s[self.facts.owners]
        self.compute_s: list[float] = self.by_class_s.sum(axis=1).tolist()
        self.move_bytes = [
            interface_bytes(tensors, self.dtype_bytes) for tensors in self.schedule.interfaces
        ]
        self.ends = list(zip(self.facts.owners, np.roll(self.facts.owners, -1), strict=True))
        self.move_s = [
            move_time_s(plan, self.cluster, int(source), int(target), size)
            for (source, target), size in zip(self.ends, self.move_bytes, strict=True)
        ]

    def prediction(self) -> Prediction:
        plan = self.plan
        round_trip_s = round_trip_time(
            self.compute_s, self.move_s, self.schedule.owners, plan.microbatches
        )
        work_s = [
            plan.microbatches * float(counts @ times)
            for counts, times in zip(self.facts.owner_counts, self.class_s, strict=True)
        ]
        busy = [seconds / round_trip_s if round_trip_s else 0.0 for seconds in work_s]
        return Prediction(
            round_trip_time_s=round_trip_s,
            usd_per_million_tokens=usd_per_million_tokens(plan, self.cluster, round_trip_s),
            occupancy=self._occupancy(busy),
            internode_bytes_per_token=float(
                sum(
                    size
                    for (source, target), size in zip(self.ends, self.move_bytes, strict=True)
                    if is_internode(plan, self.cluster, int(source), int(target))
                )
            ),
            groups=tuple(
                _group_prediction(memory, fraction)
                for memory, fraction in zip(self.memory(), busy, strict=True)
            ),
            stages=self._stages(),
            moves=self._moves(),
        )

    def memory(self) -> list[ReplicaMemory]:
        """Memory of one replica of each group."""
        owners = self.schedule.owners
        return [
            replica_memory(
                [
                    op
                    for stage, owner in zip(self.schedule.operators, owners, strict=True)
                    if owner == index
                    for op in stage
                ],
                group,
                microbatches=self.plan.microbatches,
                context=self.plan.workload.context,
                kv_heads=self.config.num_kv_heads,
                interface_bytes_per_row=widest_interfaces(
                    self.schedule.interfaces, owners, index, self.dtype_bytes
                ),
                dtype_bytes=self.dtype_bytes,
                device_memory_bytes=self.cluster.device(group.device).memory_bytes,
            )
            for index, group in enumerate(self.plan.groups)
        ]

    def _occupancy(self, busy: Sequence[float]) -> float:
        """Mean of the groups' busy fractions, weighted by what they cost (or their devices)."""
        devices = [group.num_devices for group in self.plan.groups]
        prices = [self.cluster.device(group.device).usd_per_hour for group in self.plan.groups]
        known = [price for price in prices if price is not None]
        weights = np.array(devices, dtype=float)
        if len(known) == len(prices):
            weights *= np.array(known)
        return float(np.average(busy, weights=weights))

    def _stages(self) -> tuple[StagePrediction, ...]:
        stages = []
        for occurrence, operators in zip(
            self.schedule.occurrences, self.schedule.operators, strict=True
        ):
            index, owner = occurrence.index, occurrence.owner
            codes = self.codes[owner]
            by_class_s = self.by_class_s[index, : len(codes)]
            time_s = self.compute_s[index]
            weakest = int(codes[self.facts.stage_counts[index, : len(codes)] > 0].max())
            measured_s = float(by_class_s[codes == MEASURED].sum())
            stages.append(
                StagePrediction(
                    occurrence=index,
                    group=owner,
                    operators=f"{operators[0].name}..{operators[-1].name}",
                    time_s=time_s,
                    source=SOURCES[weakest],
                    measured_fraction=measured_s / time_s if time_s else 0.0,
                )
            )
        return tuple(stages)

    def _moves(self) -> tuple[MovePrediction, ...]:
        return tuple(
            MovePrediction(
                occurrence=index,
                source_group=int(source),
                destination_group=int(target),
                bytes_per_row=size,
                time_s=time_s,
                source="analytic",
            )
            for index, ((source, target), size, time_s) in enumerate(
                zip(self.ends, self.move_bytes, self.move_s, strict=True)
            )
            if source != target
        )


def _group_prediction(memory: ReplicaMemory, busy_fraction: float) -> GroupPrediction:
    return GroupPrediction(
        weight_bytes=memory.weight_bytes,
        cache_bytes=memory.cache_bytes,
        buffer_bytes=memory.buffer_bytes,
        reserve_bytes=memory.reserve_bytes,
        memory_bytes=memory.memory_bytes,
        busy_fraction=busy_fraction,
    )
