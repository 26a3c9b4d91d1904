"""Cost of a token: CPT = T_rtt * sum_m price_m / b_m (paper equation 44)."""

from __future__ import annotations

from weavejax.meshes.cluster import Cluster
from weavejax.plan import DeviceGroup, Plan

SECONDS_PER_HOUR = 3600.0
TOKENS_PER_MILLION = 1e6


def usd_per_second_and_row(group: DeviceGroup, usd_per_hour: float) -> float:
    """Price of one replica over the rows it holds: c_m / b_m."""
    per_second = group.tensor_parallel * usd_per_hour / SECONDS_PER_HOUR
    return per_second / group.resident_batch


def usd_per_million_tokens(plan: Plan, cluster: Cluster, round_trip_time_s: float) -> float | None:
    """Dollars per million output tokens, or None where a device has no price.

    Every iteration gives each of the B resident rows one token, and all devices are paid for the
    round trip; B cancels.

    Examples:
        >>> from weavejax.plan import ModelRef, Template, Workload
        >>> plan = Plan(
        ...     model=ModelRef(name="m", digest="0", config={}),
        ...     workload=Workload(context=1),
        ...     template=Template(),
        ...     groups=(DeviceGroup(device="h100-sxm", tensor_parallel=2, resident_batch=100),),
        ... )
        >>> round(usd_per_million_tokens(plan, Cluster.parse("h100:2"), 0.05), 4)
        0.9694
    """
    rate = 0.0
    for group in plan.groups:
        price = cluster.device(group.device).usd_per_hour
        if price is None:
            return None
        rate += usd_per_second_and_row(group, price)
    return round_trip_time_s * rate * TOKENS_PER_MILLION
