"""One search as plain data, and what came of it: a plan, or the reason there is none."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import Any

from weavejax.meshes.cluster import Cluster
from weavejax.models.config import ModelConfig
from weavejax.plan import Plan, Template
from weavejax.plan_table import describe_group
from weavejax.planner import (
    InfeasiblePlanError,
    PolicyError,
    SearchLimits,
    register_policy,
    search,
)
from weavejax.planner.latency import LatencyProfile
from weavejax.planner.partition import PartitionBlock, partition_block
from weavejax.planner.policies import policy_names, policy_templates

SHIPPED_POLICIES = ("colocated", "afd", "cad", "weave")
"""Known in every process; others travel as the templates they offer."""

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Case:
    """What to search."""

    config: ModelConfig
    cluster: Cluster
    context: int
    """Tokens."""
    tpot_slo_s: float
    policy: str = "weave"
    limits: SearchLimits = SearchLimits()
    profile: LatencyProfile | None = None
    """None is the shipped measured profile."""
    templates: tuple[tuple[int, tuple[Template, ...]], ...] | None = None
    """(groups, templates) of a policy that other processes do not know; see :func:`portable`."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The proven cheapest plan of a case, or why there is none."""

    plan: Plan | None
    constraint: str = ""
    """``templates``, ``grid``, ``memory``, ``devices``, ``latency`` or ``policy`` (it fails) where
    there is no plan."""
    reason: str = ""
    """The planner's message."""
    seconds: float = 0.0
    """Of the search."""

    @property
    def usd_per_million_tokens(self) -> float:
        """Infinite where there is no plan."""
        if self.plan is None or self.plan.prediction is None:
            return float("inf")
        cost = self.plan.prediction.usd_per_million_tokens
        return float("inf") if cost is None else cost


def portable(case: Case) -> Case:
    """The case with the templates of its policy written out, unless every process knows it.

    Raises:
        ValueError: no policy has this name.
        PolicyError: it fails, or offers what is no list of templates.
    """
    if case.policy in SHIPPED_POLICIES or case.templates is not None:
        return case
    block = partition_block(case.config)
    groups = range(case.limits.min_groups, case.limits.max_groups + 1)
    offered = tuple((k, policy_templates(case.policy, block, k)) for k in groups)
    return Case(**{**vars(case), "templates": offered})


def failed(error: PolicyError) -> Outcome:
    """The outcome of a case whose policy fails."""
    return Outcome(plan=None, constraint="policy", reason=str(error))


def solve(case: Case) -> Outcome:
    """Search one case. An infeasible one is an outcome, and a failing policy, not an error.

    Raises:
        KeyboardInterrupt: interrupted before the plan was proven.
    """
    policy = case.policy if case.templates is None else _registered(case)
    start = time.perf_counter()
    try:
        report = search(
            case.config,
            case.cluster,
            case.context,
            case.tpot_slo_s,
            policy=policy,
            limits=case.limits,
            profile=case.profile,
        )
    except PolicyError as error:
        return failed(error)
    except InfeasiblePlanError as error:
        return Outcome(
            plan=None,
            constraint=error.constraint,
            reason=str(error).replace(policy, case.policy),
            seconds=time.perf_counter() - start,
        )
    if not report.proven or report.best is None:
        raise KeyboardInterrupt("the search was interrupted before its plan was proven optimal")
    return Outcome(plan=report.best.replace(policy=case.policy), seconds=report.seconds)


def _registered(case: Case) -> str:
    """A name of this process for the templates a case carries."""
    offered = dict(case.templates or ())
    digest = hashlib.sha256(repr(case.templates).encode()).hexdigest()[:12]
    name = f"{case.policy}#{digest}"
    if name not in policy_names():

        @register_policy(name)
        def templates_of(block: PartitionBlock, groups: int) -> tuple[Template, ...]:
            return offered.get(groups, ())

    return name


def record(case: Case, outcome: Outcome) -> dict[str, Any]:
    """One row of a table: the setting, the cost and what the plan looks like.

    Numbers are None where there is no plan; ``status`` is then the constraint that binds, or
    ``policy``, and ``reason`` the planner's sentence.
    """
    plan = outcome.plan
    prediction = None if plan is None else plan.prediction
    row: dict[str, Any] = {
        "model": case.config.name,
        "cluster": ",".join(f"{spec.name}:{count}" for spec, count in case.cluster.devices),
        "context_tokens": case.context,
        "tpot_slo_ms": round(case.tpot_slo_s * 1e3, 6),
        "policy": case.policy,
        "usd_per_million_tokens": None,
        "round_trip_time_ms": None,
        "groups": None,
        "template": None,
        "microbatches": None,
        "batch": None,
        "devices": None,
        "stages": None,
        "occupancy": None,
        "internode_mib_per_token": None,
        "status": outcome.constraint or "ok",
        "reason": outcome.reason,
    }
    if plan is not None and prediction is not None:
        row |= {
            "usd_per_million_tokens": prediction.usd_per_million_tokens,
            "round_trip_time_ms": prediction.round_trip_time_s * 1e3,
            "groups": " | ".join(describe_group(plan, i) for i in range(len(plan.groups))),
            "template": describe_template(plan.template),
            "microbatches": plan.microbatches,
            "batch": plan.batch,
            "devices": plan.num_devices,
            "stages": len(prediction.stages),
            "occupancy": prediction.occupancy,
            "internode_mib_per_token": prediction.internode_bytes_per_token / MIB,
        }
    return row


def describe_template(template: Template) -> str:
    """``6 layers, cuts 13, offset 7``, or ``whole`` where nothing is cut.

    Examples:
        >>> describe_template(Template(cuts=(1,), offset=1))
        '1 layer, cuts 1, offset 1'
    """
    if not template.cuts:
        return "whole"
    layers = f"{template.layers} layer{'s' * (template.layers > 1)}"
    return f"{layers}, cuts {' '.join(map(str, template.cuts))}, offset {template.offset}"
