"""What-if questions: where splitting pays, what a device may cost, what a target costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weavejax.meshes.cluster import Cluster, as_cluster
from weavejax.models.presets import resolve_config
from weavejax.planner import SearchLimits
from weavejax.planner.api import ClusterLike, ModelLike, resolve_profile
from weavejax.planner.latency import LatencyProfile
from weavejax.progress import show_progress
from weavejax.workbench.cases import Case, Outcome
from weavejax.workbench.searches import Searches
from weavejax.workbench.table import Table

ROUNDS = 20
"""Searches of a break-even at most; each round ends on the line of another plan."""


def region(
    model: ModelLike,
    cluster: ClusterLike,
    contexts: Iterable[int],
    slos_s: Iterable[float],
    *,
    limits: SearchLimits | None = None,
    profile: LatencyProfile | str | None = None,
    jobs: int | None = None,
    progress: bool | None = None,
) -> Table:
    """Where two or more groups beat one, over context and target; draws as a map.

    Arguments as for :func:`weavejax.compare`; the colocated plan and the plans of two or more
    groups are searched under the same limits.

    Returns:
        Per setting ``colocated_usd``, ``split_usd`` (per million tokens), ``gain_of_splitting``
        and a ``verdict``: ``split``, ``colocated``, ``only split fits``, ``only colocated fits``
        or ``no plan``.
    """
    grid = limits or SearchLimits()
    split_grid = dataclasses.replace(grid, min_groups=2, max_groups=max(2, grid.max_groups))
    latencies = resolve_profile(profile) if isinstance(profile, str) else profile
    alone = [
        Case(
            config=resolve_config(model),
            cluster=as_cluster(cluster),
            context=context,
            tpot_slo_s=slo_s,
            policy="colocated",
            limits=grid,
            profile=latencies,
        )
        for context in contexts
        for slo_s in slos_s
    ]
    split = [dataclasses.replace(case, policy="weave", limits=split_grid) for case in alone]
    with show_progress(progress) as report, Searches(jobs) as searches:
        outcomes = searches.run([*alone, *split], progress=report)
    count = len(alone)
    rows = []
    for case, one, many in zip(alone, outcomes[:count], outcomes[count:], strict=True):
        rows.append(
            {
                "model": case.config.name,
                "cluster": ",".join(f"{spec.name}:{n}" for spec, n in case.cluster.devices),
                "context_tokens": case.context,
                "tpot_slo_ms": round(case.tpot_slo_s * 1e3, 6),
                "colocated_usd": _cost(one),
                "split_usd": _cost(many),
                "gain_of_splitting": gain_of(one, many),
                "verdict": _verdict(one, many),
            }
        )
    return Table(records=tuple(rows), chart="map")


def gain_of(one: Outcome, many: Outcome) -> float | None:
    """Cost of the first over the second; None unless both have a plan."""
    if one.plan is None or many.plan is None:
        return None
    return one.usd_per_million_tokens / many.usd_per_million_tokens


def _verdict(alone: Outcome, split: Outcome) -> str:
    if alone.plan is None:
        return "no plan" if split.plan is None else "only split fits"
    if split.plan is None:
        return "only colocated fits"
    cheaper = split.usd_per_million_tokens < alone.usd_per_million_tokens
    return "split" if cheaper else "colocated"


@dataclass(frozen=True, kw_only=True)
class BreakEven:
    """The price below which a device type takes part in the cheapest plan."""

    device: str
    usd_per_hour: float | None
    """None where it takes part at no price; infinite where nothing runs without it."""
    listed_usd_per_hour: float | None
    """What the cluster says it costs."""
    usd_per_million_tokens_without: float
    """The cheapest plan of the other types; infinite where there is none."""
    searches: int

    def describe(self) -> str:
        """One sentence."""
        listed = "no price" if self.listed_usd_per_hour is None else f"${self.listed_usd_per_hour}"
        if self.usd_per_hour is None:
            return f"{self.device} takes part in no cheapest plan at any price"
        if self.usd_per_hour == float("inf"):
            return f"nothing runs without {self.device}, whatever it costs (listed at {listed})"
        return (
            f"{self.device} pays below ${self.usd_per_hour:.4f} an hour (listed at {listed}); "
            f"without it a million tokens cost ${self.usd_per_million_tokens_without:.4f}"
        )


def price_break_even(
    model: ModelLike,
    cluster: ClusterLike,
    context: int,
    tpot_slo_s: float,
    device: str,
    *,
    limits: SearchLimits | None = None,
    profile: LatencyProfile | str | None = None,
) -> BreakEven:
    """The exact price at which plans with a device type stop beating those without.

    The cost of one plan is linear in the price, so the cheapest cost is the lower edge of lines:
    from a price near zero, each round moves to where the line of the plan just found meets the
    cost without the device, until no plan found there is cheaper.

    Raises:
        ValueError: the cluster has one type only, or not this one.
    """
    inventory = as_cluster(cluster)
    name = inventory.device(device).name
    rest = tuple(entry for entry in inventory.devices if entry[0].name != name)
    if not rest:
        raise ValueError(
            f"a break-even of {name!r} needs another device type to compare with, got {name} only"
        )
    case = Case(
        config=resolve_config(model),
        cluster=Cluster(devices=rest),
        context=context,
        tpot_slo_s=tpot_slo_s,
        limits=limits or SearchLimits(),
        profile=resolve_profile(profile) if isinstance(profile, str) else profile,
    )
    with Searches(1) as searches:
        without = searches.run([case])[0].usd_per_million_tokens
        price, found, rounds = 1e-6, None, 0
        while rounds < ROUNDS:
            rounds += 1
            priced = dataclasses.replace(case, cluster=inventory.with_prices({name: price}))
            outcome = searches.run([priced])[0]
            if not outcome.usd_per_million_tokens < without * (1 - 1e-9):
                break
            if without == float("inf"):
                found = float("inf")
                break
            price = found = _meeting_price(outcome, name, price, without)
    return BreakEven(
        device=name,
        usd_per_hour=found,
        listed_usd_per_hour=inventory.device(name).usd_per_hour,
        usd_per_million_tokens_without=without,
        searches=rounds + 1,
    )


def _meeting_price(outcome: Outcome, device: str, price: float, cost: float) -> float:
    """The price of ``device`` at which this plan costs ``cost``."""
    plan = outcome.plan
    assert plan is not None and plan.prediction is not None
    device_hours = sum(
        group.tensor_parallel / group.resident_batch
        for group in plan.groups
        if group.device == device
    )
    slope = plan.prediction.round_trip_time_s * device_hours / 3600 * 1e6
    return price + (cost - outcome.usd_per_million_tokens) / slope


def price_curve(even: BreakEven, points: int = 9) -> Sequence[float]:
    """Prices around a break-even to draw, in US dollars per hour."""
    finite = even.usd_per_hour not in (None, float("inf"))
    centre = even.usd_per_hour if finite else even.listed_usd_per_hour
    assert centre is not None
    return [round(centre * (0.25 + 1.5 * i / (points - 1)), 4) for i in range(points)]


def _cost(outcome: Outcome) -> float | None:
    return None if outcome.plan is None else outcome.usd_per_million_tokens
