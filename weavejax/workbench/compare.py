"""``compare``: policies side by side over contexts and targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from weavejax.meshes.cluster import as_cluster
from weavejax.models.presets import resolve_config
from weavejax.plan_reading import whole_number
from weavejax.planner import SearchLimits
from weavejax.planner.api import ClusterLike, ModelLike, resolve_profile
from weavejax.planner.latency import LatencyProfile
from weavejax.planner.policies import require_policy
from weavejax.progress import show_progress
from weavejax.workbench.cases import SHIPPED_POLICIES, Case, record
from weavejax.workbench.searches import Searches
from weavejax.workbench.table import Table

LimitsLike = SearchLimits | Mapping[str, SearchLimits] | None


def compare(
    model: ModelLike,
    cluster: ClusterLike,
    contexts: int | Iterable[int],
    slos_s: float | Iterable[float],
    policies: str | Sequence[str] = SHIPPED_POLICIES,
    *,
    limits: LimitsLike = None,
    profile: LatencyProfile | str | None = None,
    jobs: int | None = None,
    progress: bool | None = None,
) -> Table:
    """The cheapest plan of every policy at every context and target, proven.

    Args:
        model: a config, a preset's name, or the path of a Hugging Face config.
        cluster: a cluster, an inventory string such as ``h100-sxm:32``, or a file.
        contexts: mean contexts in tokens.
        slos_s: targets of the time per output token, in seconds.
        policies: names, your own included, or one name. ``weave`` also holds the colocated plan.
        limits: the grid of all, or one per policy; defaults for a policy left out.
        profile: latencies; the shipped measured ones by default.
        jobs: processes; every core by default.
        progress: a bar on standard error; on a terminal by default.

    Returns:
        One record per setting and policy, ``gain_over_colocated`` (the colocated cost over this
        one) where ``colocated`` is among the policies. A setting without a plan is a record whose
        ``status`` names the constraint and whose ``reason`` says by how much it is missed; where
        a policy fails, its rows have the status ``policy`` and the reason.

    Raises:
        ValueError: nothing to compare, an unknown policy, or a device without a price.

    Examples:
        >>> small = SearchLimits(max_devices=2, max_replicas=1, max_batch=64)
        >>> table = compare("gemma-3-4b", "h100-sxm:2", 8192, 0.02, limits=small, jobs=1)
        >>> [(row["policy"], row["status"]) for row in table]
        [('colocated', 'ok'), ('afd', 'ok'), ('cad', 'ok'), ('weave', 'ok')]
    """
    config, inventory = resolve_config(model), as_cluster(cluster)
    policies = policy_list(policies)
    lengths = [whole_number("context", context) for context in _each(contexts)]
    settings = [(context, slo_s) for context in lengths for slo_s in _each(slos_s)]
    if not settings or not policies:
        raise ValueError(
            f"a comparison needs at least one context, target and policy, got {len(settings)} "
            f"settings and {len(policies)} policies"
        )
    latencies = resolve_profile(profile) if isinstance(profile, str) else profile
    cases = [
        Case(
            config=config,
            cluster=inventory,
            context=context,
            tpot_slo_s=slo_s,
            policy=name,
            limits=limits_of(limits, name),
            profile=latencies,
        )
        for context, slo_s in settings
        for name in policies
    ]
    with show_progress(progress) as report, Searches(jobs) as searches:
        outcomes = searches.run(cases, progress=report)
    rows = [record(case, outcome) for case, outcome in zip(cases, outcomes, strict=True)]
    return Table(records=tuple(with_gain(rows)))


def policy_list(policies: object) -> list[str]:
    """Names of policies that there are, from one name or several.

    Raises:
        TypeError, ValueError: what is no name of a policy.
    """
    if isinstance(policies, str) or not isinstance(policies, Iterable):
        return [require_policy(policies)]
    return [require_policy(name) for name in policies]


def limits_of(limits: LimitsLike, policy: str) -> SearchLimits:
    """The grid of one policy."""
    if limits is None:
        return SearchLimits()
    if isinstance(limits, SearchLimits):
        return limits
    return limits.get(policy, SearchLimits())


SETTING = ("model", "cluster", "context_tokens", "tpot_slo_ms", "axis_value")


def with_gain(rows: Sequence[dict]) -> Iterable[dict]:  # type: ignore[type-arg]
    """Rows with the colocated cost of the same setting over their own, after the cost."""
    colocated = {
        _setting(row): row["usd_per_million_tokens"] for row in rows if row["policy"] == "colocated"
    }
    for row in rows:
        base, cost = colocated.get(_setting(row)), row["usd_per_million_tokens"]
        gain = None if base is None or cost is None else base / cost
        items = list(row.items())
        place = list(row).index("usd_per_million_tokens") + 1
        yield dict([*items[:place], ("gain_over_colocated", gain), *items[place:]])


def _setting(row: dict) -> tuple:  # type: ignore[type-arg]
    return tuple(row.get(name) for name in SETTING)


def _each(values: float | Iterable) -> list:  # type: ignore[type-arg]
    return list(values) if isinstance(values, Iterable) else [values]
