"""Sub-meshes: the devices of every group as a frozen ``jax.sharding.Mesh``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np
from jax.sharding import Mesh

from weavejax.plan import Plan, PlanError

if TYPE_CHECKING:
    from jaxlib._jax import Device

REPLICA, MODEL = "replica", "model"


def group_meshes(
    plan: Plan, devices: Sequence[Device] | None = None, *, oversubscribe: bool = False
) -> tuple[Mesh, ...]:
    """One mesh per group with axes ``("replica", "model")``, in group order.

    Groups take disjoint devices in turn. With ``oversubscribe`` they may share: each group starts
    at the first device that keeps its own devices distinct, wrapping around.

    Args:
        plan: whose groups to place.
        devices: what to place them on; all of ``jax.devices()`` by default.
        oversubscribe: let groups share devices.

    Raises:
        PlanError: fewer devices than needed; the message says how many and what to set.
    """
    available = list(jax.devices() if devices is None else devices)
    sizes = [group.num_devices for group in plan.groups]
    needed = max(sizes) if oversubscribe else sum(sizes)
    if needed > len(available):
        kind = available[0].platform if available else jax.default_backend()
        groups = ("largest of " if oversubscribe else "") + " + ".join(map(str, sizes))
        raise PlanError(
            f"the plan needs {needed} devices ({groups} over its groups), "
            f"got {len(available)} {kind} device(s). {_advice(kind, needed, oversubscribe)}"
        )
    meshes, start = [], 0
    for group, size in zip(plan.groups, sizes, strict=True):
        if start + size > len(available):
            start = 0
        chosen = np.array(available[start : start + size], dtype=object)
        meshes.append(Mesh(chosen.reshape(group.replicas, group.tensor_parallel), (REPLICA, MODEL)))
        start += size
    return tuple(meshes)


def share_hardware(meshes: Sequence[Mesh]) -> bool:
    """Whether groups compute on the same hardware, one after the other.

    They do on a device they share, and on virtual devices of one CPU, which share its cores.
    """
    devices = [set(mesh.devices.flat) for mesh in meshes]
    if len(devices) == 1 or meshes[0].devices.flat[0].platform == "cpu":
        return True
    return any(a & b for index, a in enumerate(devices) for b in devices[:index])


def _advice(kind: str, needed: int, oversubscribe: bool) -> str:
    share = ", or let groups share devices with oversubscribe=True (--oversubscribe)"
    share = "" if oversubscribe else share
    if kind != "cpu":
        return f"Use a smaller plan{share}."
    return (
        f"Call jax.config.update('jax_num_cpu_devices', {needed}) before JAX is first used "
        f"(on the command line: --cpu-devices {needed}){share}."
    )
