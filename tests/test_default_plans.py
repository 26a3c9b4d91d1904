"""Plans for the devices at hand."""

from __future__ import annotations

import dataclasses
import re

import pytest
from strategies import ARCHITECTURES, architecture

from weavejax.default_plans import TEMPLATES, default_plan, model_ref
from weavejax.models import ModelConfig, preset_config, preset_names
from weavejax.plan import PlanError, Template
from weavejax.schedule import check_plan


@pytest.mark.parametrize("policy", TEMPLATES)
@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("devices", [0, 1, 2, 3, 7, 8, 16, 100])
def test_a_group_gets_as_many_of_its_devices_as_the_model_divides_by(policy, name, devices):
    config = architecture(name)
    plan = default_plan(config, policy, devices=devices, device="l40s", slots=12, microbatches=3)
    check_plan(plan, config)
    assert plan.policy == policy and plan.template == TEMPLATES[policy]
    assert plan.batch == 12 and plan.microbatches == 3
    groups = TEMPLATES[policy].num_stages
    assert len(plan.groups) == groups and len(set(plan.groups)) == 1
    group = plan.groups[0]
    assert group.device == "l40s" and group.replicas == 1
    share = max(1, devices // groups)
    assert group.tensor_parallel <= share
    for more in range(group.tensor_parallel + 1, share + 1):
        larger = dataclasses.replace(group, tensor_parallel=more)
        with pytest.raises(PlanError):
            check_plan(plan.replace(groups=(larger,) * groups), config)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_has_every_policy(name):
    config = preset_config(name)
    for policy in TEMPLATES:
        plan = default_plan(config, policy, devices=16)
        check_plan(plan, config)
        assert plan.num_devices <= 16
        assert ModelConfig.from_dict(plan.model.config) == config
    assert plan.model == model_ref(config)


def test_the_named_templates():
    assert TEMPLATES == {
        "colocated": Template(),
        "afd": Template(cuts=(3,)),
        "cad": Template(cuts=(1,), offset=1),
    }


@pytest.mark.parametrize(("asked", "got"), [(None, 2048), (100, 100), (8192, 8192)])
def test_the_context_is_what_is_asked_within_the_models_limit(asked, got):
    config = preset_config("smollm2-135m-instruct")
    assert config.max_position == 8192
    assert default_plan(config, context=asked).workload.context == got


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "best"}, "policy must be one of colocated, afd, cad, got 'best'"),
        ({"context": 0}, "context must be a whole number >= 1, got 0"),
        ({"context": 131073}, "context must be at most the model's 131072 positions, got 131073"),
        (
            {"slots": 8, "microbatches": 3},
            "group 0: resident_batch must divide by microbatches x attention_data_parallel = 3, "
            "got 8",
        ),
        ({"slots": 0}, "resident_batch must be a whole number >= 1, got 0"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(PlanError, match="^" + re.escape(message) + "$"):
        default_plan(architecture("llama-3.1-8b"), **options)


def test_a_width_that_nothing_divides_leaves_one_device_a_group():
    config = dataclasses.replace(architecture("llama-3.1-8b"), hidden_size=63)
    assert default_plan(config, devices=8).groups[0].tensor_parallel == 1
