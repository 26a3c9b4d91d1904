"""The types of a plan's parts: numbers of any kind become Python's, anything else is refused."""

from __future__ import annotations

import json
import re
from fractions import Fraction

import numpy as np
import pytest
from small_plans import group, small_plan

from weavejax.meshes.cluster import Cluster
from weavejax.plan import (
    DeviceGroup,
    ModelRef,
    Plan,
    PlanError,
    ProfileRef,
    Template,
    Workload,
)


class Index:
    """A whole number that is no ``int``, like those of numpy and JAX."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


@pytest.mark.parametrize("whole", [np.int64, np.uint8, Index])
def test_whole_numbers_of_any_kind_give_the_plan_that_int_gives(whole):
    def made(n):
        group = DeviceGroup(
            device=np.str_("h100-sxm"),
            tensor_parallel=n(2),
            expert_parallel=n(2),
            attention_data_parallel=n(1),
            replicas=n(3),
            resident_batch=n(4),
        )
        return small_plan(
            workload=Workload(context=n(64), tpot_slo_s=n(1) if whole is not Index else 1),
            template=Template(layers=n(2), cuts=(n(1), n(3)), offset=n(1)),
            groups=(group,) * 3,
            microbatches=n(2),
            cluster=Cluster.parse("h100-sxm:4").with_prices({"h100-sxm": np.float32(2.5)}),
            search_limits={"max_devices": 8, "batches": (1, 2)},
        )

    assert repr(made(whole)) == repr(made(int))
    assert made(whole).dumps() == made(int).dumps()
    assert Plan.from_dict(json.loads(made(whole).dumps())) == made(int)
    assert repr(Template(cuts=np.array([1, 3]))) == repr(Template(cuts=(1, 3)))


def test_a_real_target_becomes_a_float():
    for slo in (np.float32(0.5), np.float64(0.5), Fraction(1, 2)):
        workload = Workload(context=1, tpot_slo_s=slo)
        assert repr(workload) == repr(Workload(context=1, tpot_slo_s=0.5))


WHOLE = "must be a whole number"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *(
            (
                lambda cuts=cuts: Template(cuts=cuts),
                f"cuts must be a tuple of whole numbers such as (3,), got {cuts!r}",
            )
            for cuts in (3, 1.5, (1.5,), ("1",), "12", (True,), None, {3: 1}, (None,))
        ),
        (lambda: Template(layers=1.5), f"layers {WHOLE}, got 1.5"),
        (lambda: Template(layers="1"), f"layers {WHOLE}, got '1'"),
        (lambda: Template(cuts=(1,), offset=1.0), f"offset {WHOLE}, got 1.0"),
        (lambda: Template(cuts=(1,), offset=True), f"offset {WHOLE}, got True"),
        *(
            (lambda name=name: group(**{name: 2.5}), f"{name} {WHOLE} >= 1, got 2.5")
            for name in ("tensor_parallel", "expert_parallel", "attention_data_parallel")
        ),
        (lambda: group(replicas="2"), f"replicas {WHOLE} >= 1, got '2'"),
        (lambda: group(resident_batch=None), f"resident_batch {WHOLE} >= 1, got None"),
        (lambda: group(device=3), "device of a device group must be a string, got 3"),
        (lambda: Workload(context=64.0), f"context {WHOLE} >= 1, got 64.0"),
        (
            lambda: Workload(context=1, tpot_slo_s="1"),
            "tpot_slo_s must be a positive number of seconds, got '1'",
        ),
        (
            lambda: ModelRef(name=1, digest="", config={}),
            "name of the model of a plan must be a string, got 1",
        ),
        (
            lambda: ProfileRef(name="", hash=None),
            "hash of the profile of a plan must be a string, got None",
        ),
        (lambda: small_plan(microbatches=1.0), f"microbatches {WHOLE} >= 1, got 1.0"),
        (lambda: small_plan(policy=None), "policy of a plan must be a string, got None"),
        (lambda: small_plan(template="afd"), "template must be a weavejax.Template, got 'afd'"),
        (lambda: small_plan(workload=64), "workload must be a weavejax.Workload, got 64"),
        (lambda: small_plan(model="m"), "model must be a weavejax.ModelRef, got 'm'"),
        (lambda: small_plan(groups=1), "groups must be a tuple of device groups, got 1"),
        (
            lambda: small_plan(groups=("cpu",)),
            "groups[0] must be a weavejax.DeviceGroup, got 'cpu'",
        ),
        (lambda: small_plan(search_limits=3), "search_limits must be an object, got 3"),
        (
            lambda: small_plan(search_limits={"a": 1j}),
            "search_limits must be plain data that JSON holds, got {'a': 1j}: Object of type",
        ),
    ],
)
def test_values_of_another_type_are_refused(make, message):
    with pytest.raises(PlanError, match="^" + re.escape(message)):
        make()
