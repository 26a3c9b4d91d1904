"""``sweep``: one thing changes, every policy is planned again at every value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from weavejax.meshes.cluster import Cluster, as_cluster
from weavejax.models.presets import resolve_config
from weavejax.planner.api import ClusterLike, ModelLike, resolve_profile
from weavejax.planner.latency import LatencyProfile
from weavejax.progress import show_progress
from weavejax.workbench.cases import SHIPPED_POLICIES, Case, record
from weavejax.workbench.compare import LimitsLike, limits_of, policy_list, with_gain
from weavejax.workbench.searches import Searches
from weavejax.workbench.table import Table


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Something a sweep can change."""

    label: str
    change: Callable[[Case, float, str | None], Case]
    needs_device: bool = False


def _context(case: Case, value: float, device: str | None) -> Case:
    return dataclasses.replace(case, context=int(value))


def _slo(case: Case, value: float, device: str | None) -> Case:
    return dataclasses.replace(case, tpot_slo_s=value)


def _price(case: Case, value: float, device: str | None) -> Case:
    assert device is not None
    return dataclasses.replace(case, cluster=case.cluster.with_prices({device: value}))


def _latency(case: Case, value: float, device: str | None) -> Case:
    return dataclasses.replace(case, cluster=case.cluster.with_network(latency_s=value))


def _bandwidth(case: Case, value: float, device: str | None) -> Case:
    cluster = case.cluster.with_network(bandwidth_bytes_per_s=value)
    return dataclasses.replace(case, cluster=cluster)


def _ratio(case: Case, value: float, device: str | None) -> Case:
    assert device is not None
    return dataclasses.replace(case, cluster=with_device_ratio(case.cluster, device, value))


AXES = {
    "context": Axis(label="mean context (tokens)", change=_context),
    "tpot_slo_s": Axis(label="TPOT target (s)", change=_slo),
    "usd_per_hour": Axis(label="price (USD per device hour)", change=_price, needs_device=True),
    "network_latency_s": Axis(label="inter-node latency (s)", change=_latency),
    "network_bandwidth_bytes_per_s": Axis(
        label="inter-node bandwidth (bytes/s per device)", change=_bandwidth
    ),
    "device_ratio": Axis(label="share of the devices", change=_ratio, needs_device=True),
}
"""What can be swept, by name; the last part of a name is the unit of its values."""


def sweep(
    model: ModelLike,
    cluster: ClusterLike,
    context: int,
    tpot_slo_s: float,
    axis: str,
    values: Sequence[float],
    policies: str | Sequence[str] = SHIPPED_POLICIES,
    *,
    device: str | None = None,
    limits: LimitsLike = None,
    profile: LatencyProfile | str | None = None,
    jobs: int | None = None,
    progress: bool | None = None,
) -> Table:
    """Plan again at every value of one axis; the other arguments are those of ``compare``.

    Args:
        axis: a name of :data:`AXES`: ``context``, ``tpot_slo_s``, ``usd_per_hour``,
            ``network_latency_s``, ``network_bandwidth_bytes_per_s`` or ``device_ratio``.
        values: what to try, in the unit the axis names.
        device: the type whose price or share (0 to 1 of all devices) changes.

    Returns:
        Records as of ``compare``, with columns ``axis`` and ``axis_value`` in front.

    Raises:
        ValueError: an unknown axis, no value, or an axis that needs a device and has none.

    Examples:
        >>> from weavejax.planner import SearchLimits
        >>> small = SearchLimits(max_devices=2, max_replicas=1, max_batch=64)
        >>> table = sweep("gemma-3-4b", "h100-sxm:2", 8192, 0.02, "context", [4096, 16384],
        ...               ["colocated"], limits=small, jobs=1)
        >>> [row["axis_value"] for row in table]
        [4096, 16384]
    """
    if axis not in AXES:
        raise ValueError(f"an axis is one of {', '.join(AXES)}, got {axis!r}")
    chosen = AXES[axis]
    if chosen.needs_device and device is None:
        raise ValueError(f"axis {axis!r} changes one device type: name it as device=...")
    policies = policy_list(policies)
    if not values or not policies:
        raise ValueError("a sweep needs at least one value and one policy, got none")
    latencies = resolve_profile(profile) if isinstance(profile, str) else profile
    cases = []
    for value in values:
        for policy in policies:
            case = Case(
                config=resolve_config(model),
                cluster=as_cluster(cluster),
                context=context,
                tpot_slo_s=tpot_slo_s,
                policy=policy,
                limits=limits_of(limits, policy),
                profile=latencies,
            )
            cases.append((value, chosen.change(case, value, device)))
    with show_progress(progress) as report, Searches(jobs) as searches:
        outcomes = searches.run([case for _, case in cases], progress=report)
    label = f"{chosen.label} of {device}" if device else chosen.label
    rows = [
        {"axis": axis, "axis_value": value} | record(case, outcome)
        for (value, case), outcome in zip(cases, outcomes, strict=True)
    ]
    return Table(records=tuple(with_gain(rows)), chart="lines", x="axis_value", x_label=label)


def with_device_ratio(cluster: Cluster, device: str, share: float) -> Cluster:
    """The same number of devices, ``share`` of them of one type, the rest as they were to another.

    Raises:
        ValueError: a share outside [0, 1], or a cluster of one type.

    Examples:
        >>> mixed = with_device_ratio(Cluster.parse("h100:16,l40s:16"), "l40s", 0.25)
        >>> mixed.count("h100"), mixed.count("l40s")
        (24, 8)
    """
    if not 0 <= share <= 1 or len(cluster.devices) < 2:
        raise ValueError(
            "a device ratio needs a cluster of two or more types and a share in [0, 1], got "
            f"{len(cluster.devices)} type(s) and {share}"
        )
    name = cluster.device(device).name
    total = cluster.device_count
    wanted = round(share * total)
    others = total - cluster.count(name)
    counts = []
    left = total - wanted
    rest = [(spec, count) for spec, count in cluster.devices if spec.name != name]
    for index, (spec, count) in enumerate(rest):
        number = (
            left if index == len(rest) - 1 else min(left, round(count * (total - wanted) / others))
        )
        left -= number
        counts.append((spec, number))
    chosen = {spec.name: number for spec, number in counts} | {name: wanted}
    return Cluster(
        devices=tuple((spec, chosen[spec.name]) for spec, _ in cluster.devices if chosen[spec.name])
    )
