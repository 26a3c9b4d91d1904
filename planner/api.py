"""``plan`` and ``search``: the cheapest way to serve a model on a cluster within a target."""

from __future__ import annotations

import dataclasses
import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path

from weavejax.meshes.cluster import Cluster, as_cluster
from weavejax.models.config import ModelConfig
from weavejax.models.presets import resolve_config
from weavejax.plan import ModelRef, Plan, ProfileRef, Template, Workload
from weavejax.planner.branch_and_bound import Search
from weavejax.planner.candidates import Candidate
from weavejax.planner.infeasible import explain_infeasible, explain_no_template
from weavejax.planner.latency import LatencyProfile, with_cluster
from weavejax.planner.limits import SearchLimits, left_out
from weavejax.planner.partition import partition_block
from weavejax.planner.policies import policy_templates
from weavejax.planner.predict import evaluate
from weavejax.planner.progress import ProgressLike, tracked
from weavejax.planner.report import SearchReport
from weavejax.planner.space import build_space
from weavejax.planner.warm_up import compile_search
from weavejax.profiles.estimator import load_profile

ModelLike = ModelConfig | str | Path
ClusterLike = Cluster | str | os.PathLike[str]
LimitsLike = SearchLimits | Mapping[str, SearchLimits]
ALTERNATIVES = 10
LONG_SLO_S = 5.0
"""A longer target is taken for milliseconds, and warned of."""


def plan(
    model: ModelLike,
    cluster: ClusterLike,
    context: int,
    tpot_slo_s: float,
    *,
    policy: str = "weave",
    limits: LimitsLike | None = None,
    profile: LatencyProfile | str | None = None,
    progress: ProgressLike = False,
) -> Plan:
    """The cheapest plan of the grid, proven optimal.

    Args:
        model: a config, a preset's name, or the path of a Hugging Face config.
        cluster: a cluster, an inventory string such as ``h100-sxm:16,l40s:16``, or a file.
        context: mean context of the workload, tokens.
        tpot_slo_s: the round-trip time may not exceed this.
        policy: whose templates to search.
        limits: the grid; or one per policy name.
        profile: latencies; by default the measured profile that ships with the package.
        progress: True for a progress bar, or a callable.

    Returns:
        A plan with its prediction.

    Raises:
        InfeasiblePlanError: no plan of the grid fits; says which constraint binds and by how much.
        PolicyError: the policy fails, or returns what is no list of templates.
        KeyboardInterrupt: interrupted; :func:`search` returns the best so far instead.
    """
    report = search(
        model,
        cluster,
        context,
        tpot_slo_s,
        policy=policy,
        limits=limits,
        profile=profile,
        progress=progress,
    )
    if not report.proven or report.best is None:
        raise KeyboardInterrupt("the search was interrupted before its plan was proven optimal")
    return report.best


def search(
    model: ModelLike,
    cluster: ClusterLike,
    context: int,
    tpot_slo_s: float,
    *,
    policy: str = "weave",
    limits: LimitsLike | None = None,
    profile: LatencyProfile | str | None = None,
    progress: ProgressLike = False,
    pareto: bool = True,
    bound: bool = True,
) -> SearchReport:
    """Search the grid and report what was found and how; arguments as for :func:`plan`.

    Args:
        pareto: drop dominated candidates. The best plan is the same without.
        bound: cut by lower bounds. The best plan is the same without.

    Returns:
        The report. After Ctrl-C it holds the best plan so far and ``proven`` is False.

    Raises:
        InfeasiblePlanError: no plan of the grid fits.
        PolicyError: the policy fails, or returns what is no list of templates.
    """
    config = resolve_config(model)
    inventory = as_cluster(cluster)
    chosen = _limits(limits, policy)
    latencies = resolve_profile(profile)
    workload = Workload(context=context, tpot_slo_s=tpot_slo_s)
    _warn_of_milliseconds(tpot_slo_s)
    templates = search_templates(config, chosen, policy)
    compile_s = compile_search()
    start = time.perf_counter()
    space = build_space(
        config, inventory, workload.context, chosen, with_cluster(latencies, inventory)
    )
    with tracked(progress) as report_progress:
        running = Search(
            space, templates, tpot_slo_s, pareto=pareto, bound=bound, progress=report_progress
        )
        state = running.state
        try:
            running.run()
        except KeyboardInterrupt:
            pass  # the state says that it is not done
    if state.done and state.best is None:
        raise explain_infeasible(space, templates, state, workload)

    def as_plan(candidate: Candidate) -> Plan:
        return _as_plan(candidate, config, inventory, workload, policy, latencies, chosen)

    others = sorted(state.others.values(), key=lambda candidate: candidate.key)
    others = [c for c in others if state.best is None or c.key != state.best.key]
    return SearchReport(
        best=None if state.best is None else as_plan(state.best),
        proven=state.done,
        counts=state.counts(),
        alternatives=tuple(as_plan(candidate) for candidate in others[:ALTERNATIVES]),
        seconds=time.perf_counter() - start,
        compile_s=compile_s,
        limits=chosen.to_dict(),
        policy=policy,
    )


def _as_plan(
    candidate: Candidate,
    config: ModelConfig,
    cluster: Cluster,
    workload: Workload,
    policy: str,
    profile: LatencyProfile,
    limits: SearchLimits,
) -> Plan:
    found = Plan(
        model=ModelRef(name=config.name, digest=config.digest, config=config.to_dict()),
        workload=workload,
        template=candidate.facts.template,
        groups=candidate.device_groups,
        microbatches=candidate.key.microbatches,
        policy=policy,
        cluster=cluster,
        profile=ProfileRef(name=profile.name, hash=profile.hash),
        search_limits=limits.to_dict(),
    )
    return found.replace(prediction=evaluate(found, profile))


def search_templates(
    config: ModelConfig, limits: SearchLimits, policy: str
) -> dict[int, tuple[Template, ...]]:
    """The templates of a policy that the limits allow, for every number of groups.

    Raises:
        InfeasiblePlanError: none; says what was offered and why it was left out.
        PolicyError: the policy fails, or returns something else.
    """
    block = dataclasses.replace(partition_block(config), allowed=limits.sub_blocks)
    offered = {
        groups: policy_templates(policy, block, groups)
        for groups in range(limits.min_groups, limits.max_groups + 1)
    }
    kept = {
        groups: tuple(one for one in templates if not left_out(one, groups, limits))
        for groups, templates in offered.items()
    }
    if not any(kept.values()):
        raise explain_no_template(offered, limits, policy)
    return kept


def _warn_of_milliseconds(tpot_slo_s: float) -> None:
    if tpot_slo_s > LONG_SLO_S:
        warnings.warn(
            f"tpot_slo_s is in seconds a token, got {tpot_slo_s:g} s ({tpot_slo_s * 1e3:,.0f} ms); "
            "60 ms is 0.060",
            stacklevel=3,
        )


def resolve_profile(profile: LatencyProfile | str | None) -> LatencyProfile:
    """A profile from itself, a name or path, or the one that ships with the package."""
    if profile is None:
        return load_profile()
    return load_profile(profile) if isinstance(profile, str) else profile


def _limits(limits: LimitsLike | None, policy: str) -> SearchLimits:
    if limits is None:
        return SearchLimits()
    if isinstance(limits, SearchLimits):
        return limits
    if policy not in limits:
        raise ValueError(
            f"limits per policy need an entry for {policy!r}, got {', '.join(limits) or 'none'}"
        )
    return limits[policy]
