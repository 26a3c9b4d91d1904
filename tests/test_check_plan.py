"""Plans that do not fit their model are refused, with the rule and the numbers."""

from __future__ import annotations

import dataclasses
import re

import pytest
from small_plans import plan_for
from strategies import ARCHITECTURES, architecture

from weavejax.default_plans import TEMPLATES, default_plan
from weavejax.models import preset_config
from weavejax.plan import PlanError, Template
from weavejax.schedule import (
    build_schedule,
    check_plan,
)

# -- plans that do not fit -------------------------------------------------------------------------


def test_default_plans_fit_every_architecture():
    for name in ARCHITECTURES:
        config = architecture(name)
        for policy in TEMPLATES:
            check_plan(default_plan(config, policy), config)


def test_a_plan_for_another_model_is_refused():
    llama, gemma = architecture("llama-3.1-8b"), architecture("gemma-3-4b")
    plan = plan_for(llama, Template())
    message = (
        f"the plan is for model 'llama-3.1-8b-tiny' (architecture {llama.digest}), "
        f"got model 'gemma-3-4b-tiny' ({gemma.digest})"
    )
    with pytest.raises(PlanError, match="^" + re.escape(message) + "$"):
        build_schedule(plan, gemma)
    check_plan(plan, dataclasses.replace(llama, name="renamed"))  # the same architecture


def test_a_plan_for_the_tiny_model_or_the_whole_one_says_how_to_get_the_other():
    tiny, whole = architecture("gemma-3-4b"), preset_config("gemma-3-4b")
    with pytest.raises(PlanError, match=r"plan for the tiny model: .*plan gemma-3-4b --random-w"):
        check_plan(default_plan(whole), tiny)
    with pytest.raises(PlanError, match=r"run the tiny model: .*generate gemma-3-4b --random-w"):
        check_plan(default_plan(tiny), whole)


def test_a_template_longer_than_the_model_is_refused():
    config = architecture("llama-3.1-8b", 2)
    build_schedule(plan_for(config, Template(layers=2)), config)
    with pytest.raises(PlanError, match="^the template spans 3 layers, the model has 2$"):
        build_schedule(plan_for(config, Template(layers=3)), config)


def ways(count, **more):
    """All ``count`` devices of a replica attend for rows of their own."""
    return {
        "tensor_parallel": count,
        "attention_data_parallel": count,
        "resident_batch": count,
    } | more


def with_moe(config, **changes):
    return dataclasses.replace(config, moe=dataclasses.replace(config.moe, **changes))


@pytest.mark.parametrize(
    ("config", "group", "message"),
    [
        (
            architecture("llama-3.1-8b"),
            {"tensor_parallel": 3},
            "llama-3.1-8b-tiny: num_heads must divide over tensor-parallel ranks, "
            "got 8 heads for 3 ranks",
        ),
        (
            dataclasses.replace(architecture("llama-3.1-8b"), num_heads=12, num_kv_heads=4),
            {"tensor_parallel": 6},
            "llama-3.1-8b-tiny: key/value heads must divide over the ranks or the ranks over "
            "them, got 4 heads for 6 ranks",
        ),
        (
            dataclasses.replace(architecture("qwen3-next-80b-a3b"), num_heads=16),
            {"tensor_parallel": 16},
            "qwen3-next-80b-a3b-tiny: linear key heads must divide over tensor-parallel ranks, "
            "got 8 heads for 16 ranks",
        ),
        (
            architecture("llama-3.1-8b"),
            ways(3),
            "vocab_size must divide over tensor_parallel=3 devices, got 320",
        ),
        (
            architecture("llama-3.1-8b"),
            ways(5),
            "hidden_size must divide over tensor_parallel=5 devices, got 64",
        ),
        (
            architecture("llama-3.1-8b"),
            ways(64),
            "intermediate_size must divide over tensor_parallel=64 devices, got 96",
        ),
        (
            architecture("gpt-oss-20b"),
            ways(64),
            "moe intermediate_size must divide over tensor_parallel=64 devices, got 32",
        ),
        (
            architecture("gpt-oss-20b"),
            ways(16, expert_parallel=16),
            "num_experts must divide over tensor_parallel=16 devices, got 8",
        ),
        (
            with_moe(architecture("qwen3-next-80b-a3b"), shared_intermediate_size=20),
            ways(8),
            "shared_intermediate_size must divide over tensor_parallel=8 devices, got 20",
        ),
    ],
)
def test_heads_and_widths_that_do_not_divide_are_refused(config, group, message):
    with pytest.raises(PlanError, match="^" + re.escape(f"group 0: {message}") + "$"):
        build_schedule(plan_for(config, Template(), **group), config)


def test_the_group_that_does_not_fit_is_named():
    config = architecture("llama-3.1-8b")
    plan = plan_for(config, TEMPLATES["afd"], groups=2)
    odd = dataclasses.replace(plan.groups[1], tensor_parallel=3)
    with pytest.raises(PlanError, match="^group 1: .*got 8 heads for 3 ranks$"):
        check_plan(plan.replace(groups=(plan.groups[0], odd)), config)
