"""Plans of a few rows, for tests of plans as data and of how they fit a model."""

from __future__ import annotations

from weavejax.default_plans import model_ref
from weavejax.plan import DeviceGroup, ModelRef, Plan, Template, Workload


def group(**changes):
    return DeviceGroup(**({"device": "cpu", "resident_batch": 12} | changes))


def small_plan(**changes):
    """A plan of two groups for no model in particular."""
    parts = {
        "model": ModelRef(name="m", digest="0" * 12, config={"name": "m"}),
        "workload": Workload(context=64),
        "template": Template(cuts=(3,)),
        "groups": (group(), group()),
    }
    return Plan(**(parts | changes))


def plan_for(config, template, groups=1, microbatches=1, **group):
    """A plan for a model, of equal groups."""
    one = DeviceGroup(**({"device": "cpu", "resident_batch": 2 * microbatches} | group))
    return Plan(
        model=model_ref(config),
        workload=Workload(context=32),
        template=template,
        groups=(one,) * groups,
        microbatches=microbatches,
    )
