"""Which devices the groups of a plan get."""

from __future__ import annotations

import re

import jax
import pytest
from hypothesis import given, settings
from strategies import architecture, plans

from weavejax.default_plans import default_plan
from weavejax.meshes.submesh import group_meshes
from weavejax.plan import DeviceGroup, PlanError

CONFIG = architecture("llama-3.1-8b")


def plan_of(*groups):
    """A plan whose groups are (replicas, ranks) on a batch of twelve."""
    plan = default_plan(CONFIG, "afd" if len(groups) == 2 else "colocated", slots=12)
    return plan.replace(
        groups=tuple(
            DeviceGroup(
                device="cpu",
                replicas=replicas,
                tensor_parallel=ranks,
                resident_batch=12 // replicas,
            )
            for replicas, ranks in groups
        )
    )


def ids(mesh):
    return [device.id for device in mesh.devices.flat]


class Device:
    """Enough of a device that is not there."""

    def __init__(self, platform):
        self.platform = platform


@given(plans(CONFIG))
@settings(max_examples=60)
def test_groups_take_disjoint_devices_in_order(plan):
    devices = jax.devices()
    sizes = [group.num_devices for group in plan.groups]
    if sum(sizes) > len(devices):
        with pytest.raises(PlanError, match=f"needs {sum(sizes)} devices"):
            group_meshes(plan, devices)
    else:
        meshes = group_meshes(plan, devices)
        assert sum(map(ids, meshes), []) == [device.id for device in devices[: sum(sizes)]]
        for mesh, group in zip(meshes, plan.groups, strict=True):
            assert mesh.axis_names == ("replica", "model")
            assert mesh.devices.shape == (group.replicas, group.tensor_parallel)
    if max(sizes) <= len(devices):
        for mesh, size in zip(group_meshes(plan, oversubscribe=True), sizes, strict=True):
            assert len(set(ids(mesh))) == size


def test_oversubscribed_groups_wrap_around():
    three = jax.devices()[:3]
    plan = plan_of((2, 1), (1, 2))
    assert [ids(mesh) for mesh in group_meshes(plan, three, oversubscribe=True)] == [[0, 1], [0, 1]]
    plan = plan_of((1, 1), (1, 2))
    assert [ids(mesh) for mesh in group_meshes(plan, three, oversubscribe=True)] == [[0], [1, 2]]
    one = jax.devices()[3:4]
    plan = plan_of((1, 1), (1, 1))
    assert [ids(mesh) for mesh in group_meshes(plan, one, oversubscribe=True)] == [[3], [3]]


@pytest.mark.parametrize(
    ("devices", "oversubscribe", "needed", "got", "advice"),
    [
        (
            jax.devices,
            False,
            10,
            "8 cpu",
            "Call jax.config.update('jax_num_cpu_devices', 10) before JAX is first used (on the "
            "command line: --cpu-devices 10), or let groups share devices with "
            "oversubscribe=True (--oversubscribe).",
        ),
        (
            lambda: jax.devices()[:5],
            True,
            6,
            "5 cpu",
            "Call jax.config.update('jax_num_cpu_devices', 6) before",
        ),
        (list, False, 10, "0 cpu", "Call jax.config.update('jax_num_cpu_devices', 10) before"),
        (
            lambda: [Device("gpu")] * 4,
            False,
            10,
            "4 gpu",
            "Use a smaller plan, or let groups share devices with oversubscribe=True "
            "(--oversubscribe).",
        ),
    ],
)
def test_too_few_devices_says_what_to_set(devices, oversubscribe, needed, got, advice):
    message = (
        f"the plan needs {needed} devices ({'largest of ' * oversubscribe}4 + 6 over its groups), "
        f"got {got} device(s). {advice}"
    )
    with pytest.raises(PlanError, match="^" + re.escape(message)):
        group_meshes(plan_of((2, 2), (6, 1)), devices(), oversubscribe=oversubscribe)
