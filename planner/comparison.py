"""A plan beside its rivals: colocated, AFD, CAD, and the best plan of two or more groups."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from weavejax.models.config import ModelConfig
from weavejax.models.costs import stored_params
from weavejax.models.sequence import operator_sequence
from weavejax.plan import Plan, PlanError
from weavejax.planner.api import search
from weavejax.planner.latency import LatencyProfile
from weavejax.planner.limits import SearchLimits
from weavejax.planner.memory import DTYPE_BYTES, RESERVE_FRACTION
from weavejax.planner.predict import plan_cluster, plan_profile
from weavejax.planner.report import InfeasiblePlanError
from weavejax.theory import homogeneous_gain_cap
from weavejax.theory_terms import TheoryDevice, TheoryModel

BASELINES = ("colocated", "afd", "cad")


@dataclass(frozen=True, kw_only=True)
class Rival:
    """The best plan of one policy, or why there is none."""

    name: str
    plan: Plan | None
    reason: str = ""

    @property
    def usd_per_million_tokens(self) -> float:
        return _cost(self.plan)


@dataclass(frozen=True, kw_only=True)
class GainCap:
    """Theorem 3.1: no homogeneous gain over colocation reaches M / (M - M_weights)."""

    cap: float
    devices: int
    """Devices of the colocated replica whose memory M is."""
    gain: float
    """Colocated cost over the cost of the best plan of two or more groups."""
    beyond: tuple[str, ...]
    """What the theorem leaves out and these two plans differ in; given where gain > cap."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What else the same cluster, context and target allow."""

    rivals: tuple[Rival, ...]
    """``colocated``, ``afd``, ``cad``."""
    split: Rival
    """Best plan of two or more groups."""
    cap: GainCap | None
    """None where several device types take part or nothing can be compared."""
    limits: SearchLimits = SearchLimits()
    """What all of them were searched under."""

    @property
    def colocated(self) -> Rival:
        return self.rivals[0]

    @property
    def disaggregate(self) -> bool:
        """Whether two or more groups are cheaper than one."""
        return self.split.usd_per_million_tokens < self.colocated.usd_per_million_tokens

    @property
    def gain(self) -> float | None:
        """Colocated cost over the best cost of two or more groups; None unless both exist."""
        if self.split.plan is None or self.colocated.plan is None:
            return None
        return self.colocated.usd_per_million_tokens / self.split.usd_per_million_tokens


def compare(
    plan: Plan, profile: LatencyProfile | None = None, *, limits: SearchLimits | None = None
) -> Comparison:
    """Search the baselines and the plans of two or more groups under the same limits.

    Args:
        plan: gives model, cluster, context and target.
        profile: by default the one the plan names.
        limits: the same for all; by default those the plan was searched under.

    Raises:
        ValueError: the plan has no latency target.
    """
    if plan.workload.tpot_slo_s is None:
        raise ValueError("a comparison needs the plan's workload.tpot_slo_s, got None")
    limits = limits or plan_limits(plan)
    latencies = plan_profile(plan, profile)
    rivals = tuple(_rival(plan, name, name, limits, latencies) for name in BASELINES)
    split_limits = dataclasses.replace(limits, min_groups=2, max_groups=max(2, limits.max_groups))
    split = _rival(plan, "two or more groups", "weave", split_limits, latencies)
    cap = _gain_cap(rivals[0].plan, split.plan)
    return Comparison(rivals=rivals, split=split, cap=cap, limits=limits)


def plan_limits(plan: Plan) -> SearchLimits:
    """The limits a plan was searched under; the default ones for a plan that says none.

    Raises:
        PlanError: limits that this version cannot read.
    """
    if plan.search_limits is None:
        return SearchLimits()
    try:
        return SearchLimits.from_dict(plan.search_limits)
    except (TypeError, ValueError) as error:
        raise PlanError(f"search_limits of the plan: {error}") from None


def _rival(
    plan: Plan, name: str, policy: str, limits: SearchLimits, profile: LatencyProfile
) -> Rival:
    config = ModelConfig.from_dict(plan.model.config)
    assert plan.workload.tpot_slo_s is not None
    try:
        report = search(
            config,
            plan_cluster(plan),
            plan.workload.context,
            plan.workload.tpot_slo_s,
            policy=policy,
            limits=limits,
            profile=profile,
        )
    except InfeasiblePlanError as error:
        return Rival(name=name, plan=None, reason=str(error))
    if not report.proven:
        raise KeyboardInterrupt("the comparison was interrupted")
    return Rival(name=name, plan=report.best)


def _gain_cap(colocated: Plan | None, split: Plan | None) -> GainCap | None:
    if colocated is None or split is None:
        return None
    if len({group.device for group in (*colocated.groups, *split.groups)}) > 1:
        return None
    config = ModelConfig.from_dict(colocated.model.config)
    (group,) = colocated.groups
    device = TheoryDevice.from_spec(
        plan_cluster(colocated).device(group.device),
        devices=group.tensor_parallel,
        memory_reserve=RESERVE_FRACTION,
    )
    params = stored_params(operator_sequence(config))
    cap = homogeneous_gain_cap(
        device, TheoryModel(weights_bytes=DTYPE_BYTES * params, active_params=params)
    )
    gain = _cost(colocated) / _cost(split)
    return GainCap(
        cap=cap,
        devices=group.tensor_parallel,
        gain=gain,
        beyond=left_out(colocated, split, config) if gain > cap else (),
    )


def left_out(colocated: Plan, split: Plan, config: ModelConfig) -> tuple[str, ...]:
    """What theorem 3.1 leaves out, as far as it applies to these two plans."""
    (group,) = colocated.groups
    reasons = []
    copies = group.heads_ways // config.num_kv_heads
    if copies > 1:
        reasons.append(
            f"the colocated group cuts {config.num_kv_heads} key/value heads over "
            f"{group.heads_ways} ranks and keeps {copies} copies of the cache"
        )
    ways = sorted({g.tensor_parallel for g in split.groups})
    if ways != [group.tensor_parallel]:
        reasons.append(
            f"the split plan's replicas have {', '.join(map(str, ways))} devices, the colocated "
            f"one {group.tensor_parallel}: collectives and kernel efficiency differ"
        )
    if any(g.attention_data_parallel != group.attention_data_parallel for g in split.groups):
        reasons.append("only one of the two uses data-parallel attention")
    if colocated.prediction is not None and colocated.workload.tpot_slo_s is not None:
        share = colocated.prediction.round_trip_time_s / colocated.workload.tpot_slo_s
        if share > 0.8:
            reasons.append(
                f"the colocated plan uses {share:.0%} of the latency target, which may hold its "
                "batch down"
            )
    reasons.append(
        "latencies are measured or floored, not rooflines, and batches lie on a grid: both plans "
        "may sit on a different step"
    )
    return tuple(reasons)


def _cost(plan: Plan | None) -> float:
    if plan is None or plan.prediction is None:
        return float("inf")
    cost = plan.prediction.usd_per_million_tokens
    return float("inf") if cost is None else cost
