"""Moves between groups: which link applies, and how long it is held.

A move of one microbatch takes ``latency + bytes / bandwidth`` at the slower endpoint (design
section 5). The source sends its replica's rows, the destination receives its replica's rows, each
over the links of all its devices.

**When the link inside a node applies.** Only groups of one device type can share nodes. Let d be
the greatest common divisor of the replica counts of *all* groups of that type in the plan. They
form d equal units, each holding the same rows on all of those groups; when the devices of one unit
fit one node, every move between these groups stays inside a node, else none is counted on to. The
rule reads the plan alone, and dropping a common factor of all replica counts or needing fewer
devices never loses the fast link.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weavejax.meshes.cluster import Cluster
from weavejax.meshes.devices import DeviceSpec, Link
from weavejax.plan import DeviceGroup, Plan


def shares_node(groups: Sequence[DeviceGroup], device: DeviceSpec) -> bool:
    """Whether all groups of one device type keep their moves inside nodes.

    Examples:
        >>> from weavejax.meshes import device_spec
        >>> h100 = device_spec("h100-sxm")
        >>> pair = [DeviceGroup(device="h100-sxm", tensor_parallel=4, replicas=3, resident_batch=4)]
        >>> shares_node(pair * 2, h100)          # three nodes, each with one replica of both
        True
        >>> shares_node(pair * 3, h100)          # twelve devices do not fit one node
        False
    """
    mine = [group for group in groups if group.device == device.name]
    units = math.gcd(*(group.replicas for group in mine))
    return sum(group.num_devices for group in mine) // units <= device.devices_per_node


def endpoint_links(plan: Plan, cluster: Cluster, source: int, target: int) -> tuple[Link, Link]:
    """The link at the source and at the destination of a move between two groups."""
    source_spec, target_spec = (cluster.device(plan.groups[i].device) for i in (source, target))
    if source_spec.name == target_spec.name and shares_node(plan.groups, source_spec):
        return source_spec.intra_node, target_spec.intra_node
    return source_spec.inter_node, target_spec.inter_node


def is_internode(plan: Plan, cluster: Cluster, source: int, target: int) -> bool:
    """Whether a move between two groups leaves its node."""
    if source == target:
        return False
    spec = cluster.device(plan.groups[source].device)
    other = cluster.device(plan.groups[target].device)
    return spec.name != other.name or not shares_node(plan.groups, spec)


def seconds_per_row_byte(group: DeviceGroup, link: Link, microbatches: int) -> float:
    """Seconds an endpoint needs per byte of a row, for one microbatch of one replica."""
    rows = group.resident_batch // microbatches
    return rows / (group.tensor_parallel * link.bandwidth_bytes_per_s)


def move_time_s(
    plan: Plan, cluster: Cluster, source: int, target: int, bytes_per_row: int
) -> float:
    """Seconds that moving one microbatch over one boundary holds both channels.

    Args:
        plan: gives rows and devices of both ends.
        cluster: gives their links.
        source, target: groups; a move inside one group takes no time.
        bytes_per_row: size of the interface.
    """
    if source == target:
        return 0.0
    links = endpoint_links(plan, cluster, source, target)
    slowest = max(
        seconds_per_row_byte(plan.groups[index], link, plan.microbatches)
        for index, link in zip((source, target), links, strict=True)
    )
    return max(link.latency_s for link in links) + bytes_per_row * slowest
