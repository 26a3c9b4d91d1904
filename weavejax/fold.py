"""Folding: the same plan on fewer devices, for correctness.

Every plan can run on a laptop or on one GPU: replicas and ranks that have no device of their own
are folded into others. Stages, microbatches, slots and tokens stay the same; the figures do not.
"""

from __future__ import annotations

import dataclasses

from weavejax.plan import DeviceGroup, Plan


def fold_plan(plan: Plan, devices: int) -> Plan:
    """A plan each of whose groups fits ``devices`` devices by itself.

    A group that is too large keeps as many replicas as fit and divide its own, then as many ranks.

    Examples:
        >>> from weavejax.plan import ModelRef, Template, Workload
        >>> plan = Plan(
        ...     model=ModelRef(name="m", digest="", config={}), workload=Workload(context=8),
        ...     template=Template(), groups=(DeviceGroup(
        ...         device="h100-sxm", replicas=3, tensor_parallel=2, resident_batch=4),))
        >>> [folded] = fold_plan(plan, 2).groups
        >>> folded.replicas, folded.tensor_parallel, folded.resident_batch
        (1, 2, 12)
    """
    return plan.replace(groups=tuple(_fold(group, devices) for group in plan.groups))


def _fold(group: DeviceGroup, devices: int) -> DeviceGroup:
    if group.num_devices <= devices:
        return group
    ranks = _largest_divisor(group.tensor_parallel, devices)
    replicas = _largest_divisor(group.replicas, devices // ranks)
    return dataclasses.replace(
        group,
        tensor_parallel=ranks,
        expert_parallel=min(group.expert_parallel, ranks),
        attention_data_parallel=min(group.attention_data_parallel, ranks),
        replicas=replicas,
        resident_batch=group.batch // replicas,
    )


def _largest_divisor(number: int, limit: int) -> int:
    return next(d for d in range(min(number, limit), 0, -1) if number % d == 0)
