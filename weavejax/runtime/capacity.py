"""Whether a plan's weights and caches fit the devices, before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh

from weavejax.models.config import ModelConfig
from weavejax.models.costs import cache_bytes, stored_params
from weavejax.models.specs import OperatorSpec
from weavejax.plan import Plan, PlanError
from weavejax.runtime.binding import StageBinding


def group_bytes(
    plan: Plan, config: ModelConfig, stages: Sequence[StageBinding], dtype: Any
) -> list[tuple[int, int]]:
    """(weight bytes, cache bytes) on one device of every group."""
    width = jnp.dtype(dtype).itemsize
    owned: list[dict[int, OperatorSpec]] = [{} for _ in plan.groups]
    for stage in stages:
        ops = (stage.embed, *stage.operators, stage.head)
        owned[stage.owner] |= {op.index: op for op in ops if op is not None}
    needs = []
    for group, operators in zip(plan.groups, owned, strict=True):
        rows, context = group.resident_batch, plan.workload.context
        weights = width * stored_params(operators.values(), group, config.num_kv_heads)
        caches = sum(cache_bytes(op, rows, context, group, width) for op in operators.values())
        needs.append((weights, caches))
    return needs


def check_capacity(
    plan: Plan,
    config: ModelConfig,
    stages: Sequence[StageBinding],
    meshes: Sequence[Mesh],
    dtype: Any,
) -> None:
    """Raise unless the weights and caches of all groups fit.

    Virtual CPU devices share the memory of the host.

    Raises:
        PlanError: names the group that needs most, the bytes needed and the bytes there.
    """
    needs = group_bytes(plan, config, stages, dtype)
    totals: dict[Any, int] = {}
    for (weights, caches), mesh in zip(needs, meshes, strict=True):
        for device in mesh.devices.flat:
            key = "cpu" if device.platform == "cpu" else device
            totals[key] = totals.get(key, 0) + weights + caches
    for key, total in totals.items():
        there = _host_bytes() if key == "cpu" else _device_bytes(key)
        if there is None or total <= there:
            continue
        largest = max(range(len(needs)), key=lambda index: sum(needs[index]))
        weights, caches = needs[largest]
        where = "this host" if key == "cpu" else f"device {key}"
        raise PlanError(
            f"weights and caches must fit the memory: {where} would hold {total / 1e9:.1f} GB, got "
            f"{there / 1e9:.1f} GB. Group {largest} needs most, {weights / 1e9:.2f} GB of weights "
            f"and {caches / 1e9:.2f} GB of caches on each device, for "
            f"{plan.groups[largest].resident_batch} slots of {plan.workload.context} tokens; use "
            "fewer slots or a shorter context"
        )


def _host_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not every system tells
        return None


def _device_bytes(device: Any) -> int | None:
    statistics = device.memory_stats()
    return None if statistics is None else statistics.get("bytes_limit")
