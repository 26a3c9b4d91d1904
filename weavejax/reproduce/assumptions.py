"""Assumptions about the evaluation, each a change of the settings of figure 9."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from weavejax.meshes.cluster import Cluster
from weavejax.workbench.cases import Case
from weavejax.workbench.variant import ProfileVariant

WIDE_REPLICAS, WIDE_DEVICES = 8, 64
LARGER = f"<={WIDE_REPLICAS} replicas, {WIDE_DEVICES} devices, offsets"
SLOW = "20 us a stage; groups apart, 100 us, bandwidth/8"
TOGETHER = f"colocated TP<=2, {SLOW}"
SIMPLE = "colocated TP 1, AFD and CAD in one microbatch"


@dataclass(frozen=True, kw_only=True)
class Switch:
    """One assumption, flipped."""

    name: str
    change: Callable[[Case], Case]


def limited(case: Case, **limits: object) -> Case:
    """The case with other search limits."""
    return dataclasses.replace(case, limits=dataclasses.replace(case.limits, **limits))  # type: ignore[arg-type]


def colocated_only(change: Callable[[Case], Case]) -> Callable[[Case], Case]:
    """The change for the colocated baseline alone."""
    return lambda case: change(case) if case.policy == "colocated" else case


def wide(case: Case) -> Case:
    """Twice the replicas on twice the devices."""
    cluster = Cluster(devices=tuple((spec, count * 2) for spec, count in case.cluster.devices))
    changed = limited(case, max_replicas=WIDE_REPLICAS, max_devices=WIDE_DEVICES)
    return dataclasses.replace(changed, cluster=cluster)


def stage_cost(seconds: float) -> Callable[[Case], Case]:
    """A fixed cost for every stage execution, colocated ones included."""
    return lambda case: dataclasses.replace(case, profile=ProfileVariant(stage_overhead_s=seconds))


def network(latency_s: float | None = None, share: float = 1.0) -> Callable[[Case], Case]:
    """Another latency between nodes, or a share of the bandwidth."""

    def change(case: Case) -> Case:
        (spec, _), *_ = case.cluster.devices
        bandwidth = spec.inter_node.bandwidth_bytes_per_s * share
        return dataclasses.replace(
            case,
            cluster=case.cluster.with_network(bandwidth_bytes_per_s=bandwidth, latency_s=latency_s),
        )

    return change


def apart(case: Case) -> Case:
    """Groups never share a node: every move between them takes the network between nodes."""
    return dataclasses.replace(
        case,
        cluster=Cluster(
            devices=tuple(
                (dataclasses.replace(spec, intra_node=spec.inter_node), count)
                for spec, count in case.cluster.devices
            )
        ),
    )


def whole_cache(case: Case) -> Case:
    """Sliding layers keep the whole context in memory, as an engine without a mixed cache does.

    Their attention still reads one window, so only the memory changes.
    """
    window = case.config.sliding_window
    if window is None or window >= case.context:
        return case
    return dataclasses.replace(
        case,
        config=dataclasses.replace(case.config, sliding_window=case.context),
        profile=ProfileVariant(timed_window=window),
    )


def one_device(case: Case) -> Case:
    """A colocated engine of one device a replica."""
    return limited(case, tensor_parallel=(1,)) if case.policy == "colocated" else case


def unpipelined(case: Case) -> Case:
    """AFD and CAD hand one batch to and fro, and each group waits for the other.

    The paper's occupancy of both, 47 to 54 %, is that of two groups that take turns.
    """
    return limited(case, max_microbatches=1) if case.policy in ("afd", "cad") else case


def paper_like(case: Case) -> Case:
    """The changes that favour the paper's numbers, together."""
    return slow(limited(case, tensor_parallel=(1, 2)) if case.policy == "colocated" else case)


def slow(case: Case) -> Case:
    """A fixed cost for every stage, and a slow network between groups that never share a node."""
    return stage_cost(20e-6)(apart(network(100e-6, 1 / 8)(case)))


SWITCHES = (
    Switch(name="as described", change=lambda case: case),
    Switch(
        name="colocated TP<=2",
        change=colocated_only(lambda case: limited(case, tensor_parallel=(1, 2))),
    ),
    Switch(
        name="colocated TP<=4",
        change=colocated_only(lambda case: limited(case, tensor_parallel=(1, 2, 4))),
    ),
    Switch(name="colocated without a mixed cache", change=colocated_only(whole_cache)),
    Switch(
        name="colocated TP<=2 without a mixed cache",
        change=colocated_only(lambda case: limited(whole_cache(case), tensor_parallel=(1, 2))),
    ),
    Switch(
        name="AFD and CAD without a mixed cache",
        change=lambda case: whole_cache(case) if case.policy in ("afd", "cad") else case,
    ),
    Switch(name="colocated TP 1", change=one_device),
    Switch(
        name="colocated TP 1 without a mixed cache",
        change=colocated_only(lambda case: one_device(whole_cache(case))),
    ),
    Switch(name="AFD and CAD in one microbatch", change=unpipelined),
    Switch(
        name="colocated TP<=2; AFD and CAD in one microbatch",
        change=lambda case: unpipelined(
            limited(case, tensor_parallel=(1, 2)) if case.policy == "colocated" else case
        ),
    ),
    Switch(name=SIMPLE, change=lambda case: unpipelined(one_device(case))),
    Switch(
        name="data-parallel attention",
        change=lambda case: limited(case, attention_data_parallel=True),
    ),
    Switch(
        name="data-parallel attention, AFD and CAD in one microbatch",
        change=lambda case: unpipelined(limited(case, attention_data_parallel=True)),
    ),
    Switch(name="offsets", change=lambda case: limited(case, offsets=True)),
    Switch(name=f"<={WIDE_REPLICAS} replicas, {WIDE_DEVICES} devices", change=wide),
    Switch(name=LARGER, change=lambda case: wide(limited(case, offsets=True))),
    Switch(name="20 us a stage", change=stage_cost(20e-6)),
    Switch(name="groups never share a node", change=apart),
    Switch(name="network 5 us", change=network(5e-6)),
    Switch(name="network 100 us", change=network(100e-6)),
    Switch(name="one link a replica (bandwidth/8)", change=network(share=1 / 8)),
    Switch(name=TOGETHER, change=paper_like),
    Switch(name=f"{SIMPLE}, {SLOW}", change=lambda case: slow(unpipelined(one_device(case)))),
)
