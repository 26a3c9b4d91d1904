"""What would have to change for the verdict to flip: context, price, network, parallelism."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from weavejax.meshes.cluster import Cluster
from weavejax.models.config import ModelConfig
from weavejax.plan import Plan
from weavejax.planner.api import search
from weavejax.planner.comparison import plan_limits
from weavejax.planner.latency import LatencyProfile
from weavejax.planner.limits import SearchLimits
from weavejax.planner.predict import plan_cluster, plan_profile
from weavejax.planner.report import InfeasiblePlanError

STEPS = 3
"""Doublings tried in each direction."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a verdict depends on, besides the model and the target."""

    context: int
    cluster: Cluster
    limits: SearchLimits


@dataclass(frozen=True, kw_only=True)
class Flip:
    """The first change along one axis that turns the verdict, or that none of those tried does."""

    axis: str
    change: str | None
    """``context 131,072 instead of 32,768``; None where the verdict held."""
    tried: int
    """Settings tried along the axis."""


def flips(
    plan: Plan, profile: LatencyProfile | None = None, *, limits: SearchLimits | None = None
) -> tuple[Flip, ...]:
    """Search again with one thing changed at a time, until the number of groups turns.

    Args:
        plan: gives model, cluster, context and target.
        profile: by default the one the plan names.
        limits: of every search, by default those of the plan's; the verdict turned is that of
            the best plan under them.

    Returns:
        One entry per axis. Settings without a plan do not count as a flip.
    """
    base = Setting(
        context=plan.workload.context,
        cluster=plan_cluster(plan),
        limits=limits or plan_limits(plan),
    )
    latencies = plan_profile(plan, profile)
    config = ModelConfig.from_dict(plan.model.config)
    slo_s = plan.workload.tpot_slo_s
    if slo_s is None:
        raise ValueError("a verdict needs the plan's workload.tpot_slo_s, got None")

    def alone(setting: Setting) -> bool | None:
        """Whether one group is best; None where nothing fits."""
        try:
            report = search(
                config,
                setting.cluster,
                setting.context,
                slo_s,
                limits=setting.limits,
                profile=latencies,
            )
        except InfeasiblePlanError:
            return None
        if report.best is None or not report.proven:
            raise KeyboardInterrupt("the sensitivity analysis was interrupted")
        return len(report.best.groups) == 1

    now, found = alone(base), []
    for axis, changes in _axes(config, base):
        tried, flipped = 0, None
        for description, setting in changes:
            tried += 1
            if alone(setting) is (not now):
                flipped = description
                break
        found.append(Flip(axis=axis, change=flipped, tried=tried))
    return tuple(found)


Changes = Iterator[tuple[str, Setting]]


def _axes(config: ModelConfig, base: Setting) -> list[tuple[str, Changes]]:
    axes: list[tuple[str, Changes]] = [("context", _contexts(config, base))]
    if len(base.cluster.devices) > 1:
        axes.append(("price", _prices(base)))
    axes.append(("network", _networks(base)))
    axes.append(("tensor-parallel limit", _parallel_limits(base)))
    return axes


def _contexts(config: ModelConfig, base: Setting) -> Changes:
    for factor in _factors():
        context = int(base.context * factor)
        if 1 <= context <= max(config.max_position, base.context):
            yield (
                f"context {context:,} instead of {base.context:,}",
                dataclasses.replace(base, context=context),
            )


def _prices(base: Setting) -> Changes:
    for factor in _factors():
        for spec, _ in base.cluster.devices:
            price = spec.require_usd_per_hour()
            cluster = base.cluster.with_prices({spec.name: price * factor})
            yield (
                f"{spec.name} at ${price * factor:.2f} an hour instead of ${price:.2f}",
                dataclasses.replace(base, cluster=cluster),
            )


def _networks(base: Setting) -> Changes:
    for factor in _factors():
        cluster = _map_devices(
            base.cluster,
            lambda link, f=factor: dataclasses.replace(
                link,
                bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * f,
                latency_s=link.latency_s / f,
            ),
        )
        word = "faster" if factor > 1 else "slower"
        times = factor if factor > 1 else 1 / factor
        yield (
            f"an inter-node network {times:g} times {word} (bandwidth and latency)",
            dataclasses.replace(base, cluster=cluster),
        )


def _parallel_limits(base: Setting) -> Changes:
    ways = base.limits.tensor_parallel
    for count in range(len(ways) - 1, 0, -1):
        limits = dataclasses.replace(base.limits, tensor_parallel=ways[:count])
        yield (
            f"at most {ways[count - 1]} devices a replica instead of {ways[-1]}",
            dataclasses.replace(base, limits=limits),
        )


def _factors() -> tuple[float, ...]:
    """2, 1/2, 4, 1/4, ...: the smallest change first."""
    return tuple(factor for step in range(1, STEPS + 1) for factor in (2.0**step, 2.0**-step))


def _map_devices(cluster: Cluster, change: Callable) -> Cluster:  # type: ignore[type-arg]
    return Cluster(
        devices=tuple(
            (dataclasses.replace(spec, inter_node=change(spec.inter_node)), count)
            for spec, count in cluster.devices
        )
    )
