"""Candidates: exact round-trip times of a batch of them, their order, and their plans."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weavejax.plan import DeviceGroup
from weavejax.planner.round_trip_batch import round_trip_times
from weavejax.planner.space import OwnerPoints, Space
from weavejax.planner.template_facts import TemplateFacts, TemplateTraffic

Array = NDArray[np.float64]

TIE_DIGITS = 10
"""Costs that agree to this many significant digits are a tie."""

TIE_SLACK = 1 + 2e-9
"""Bounds within this factor of the incumbent are kept, so that ties are all seen."""


@dataclass(frozen=True, kw_only=True, order=True)
class CandidateKey:
    """The order of candidates: cheaper, then fewer devices, then the smaller batch.

    Then less compute, fewer groups, the earlier template, fewer microbatches and the earlier
    owner points, so that the best candidate is one and the same whatever finds it.
    """

    cost: float
    devices: int
    batch: int
    work_s: float
    groups: int
    template: int
    microbatches: int
    points: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A simulated candidate."""

    key: CandidateKey
    round_trip_time_s: float
    usd_per_token: float
    facts: TemplateFacts
    device_groups: tuple[DeviceGroup, ...]


def significant(value: float) -> float:
    """Rounded to the digits that decide a tie.

    >>> significant(1.00000000004) == significant(1.0)
    True
    """
    return float(f"{value:.{TIE_DIGITS - 1}e}")


def candidate_times_s(
    facts: TemplateFacts,
    traffic: TemplateTraffic,
    points: OwnerPoints,
    found: NDArray[np.int64],
    shares: NDArray[np.int64],
) -> Array:
    """Exact round-trip times of candidates of one combination.

    Args:
        found: ``[n, K]`` owner points.
        shares: ``[n]`` bit set of device types whose groups share nodes.

    Returns:
        ``[n]`` seconds.
    """
    count, occurrences = len(found), len(facts.owners)
    compute = np.empty((count, occurrences))
    for group in range(facts.groups):
        mine = facts.owners == group
        compute[:, mine] = points.class_s[found[:, group]] @ facts.stage_counts[mine].T
    move = np.zeros((count, occurrences))
    targets = np.roll(facts.owners, -1)
    for source, target in zip(*np.nonzero(facts.pair_moves), strict=True):
        between = (facts.owners == source) & (targets == target)
        p, q = found[:, source], found[:, target]
        device = points.device_index[p]
        inside = (device == points.device_index[q]) & (shares >> device & 1).astype(bool)
        link = np.where(inside, 0, 1)
        latency = np.maximum(points.link_latency_s[p, link], points.link_latency_s[q, link])
        per_byte = np.maximum(points.link_s_per_byte[p, link], points.link_s_per_byte[q, link])
        move[:, between] = latency[:, None] + np.outer(per_byte, traffic.bytes_per_row[between])
    return round_trip_times(compute, move, tuple(facts.owners.tolist()), points.microbatches)


def make_candidate(
    space: Space,
    facts: TemplateFacts,
    template_index: int,
    points: OwnerPoints,
    choice: NDArray[np.int64],
    round_trip_time_s: float,
    rates: Array,
) -> Candidate:
    """Wrap one simulated candidate; ``rates`` is what a second costs at each owner point."""
    cost = round_trip_time_s * float(rates[choice].sum())
    work = sum(
        float(facts.owner_counts[group] @ points.class_s[point])
        for group, point in enumerate(choice)
    )
    return Candidate(
        key=CandidateKey(
            cost=significant(cost),
            devices=int(points.devices[choice].sum()),
            batch=points.batch,
            work_s=significant(work),
            groups=facts.groups,
            template=template_index,
            microbatches=points.microbatches,
            points=tuple(int(point) for point in choice),
        ),
        round_trip_time_s=round_trip_time_s,
        usd_per_token=cost,
        facts=facts,
        device_groups=tuple(
            space.options[points.option[p]].group(int(points.replicas[p]), int(points.rows[p]))
            for p in choice
        ),
    )
