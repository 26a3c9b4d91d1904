"""Plans as data: validation, and JSON in and out."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
from hypothesis import given, settings
from small_plans import group, small_plan
from strategies import architecture, plans, predictions, templates

from weavejax.default_plans import default_plan
from weavejax.meshes.cluster import Cluster
from weavejax.plan import (
    Parallelism,
    Plan,
    PlanError,
    ProfileRef,
    Template,
    Workload,
)
from weavejax.prediction import GroupPrediction, Prediction

# -- round trips -----------------------------------------------------------------------------------


@given(plans(annotated=True))
@settings(max_examples=60)
def test_json_gives_the_same_plan_and_the_same_text(plan):
    text = plan.dumps()
    again = Plan.from_dict(json.loads(text))
    assert again == plan
    assert again.dumps() == text


@given(predictions())
@settings(max_examples=30)
def test_a_prediction_survives_json(prediction):
    assert Prediction.from_dict(json.loads(json.dumps(prediction.to_dict()))) == prediction


def test_the_text_is_this():
    plan = small_plan(
        groups=(group(), group(device="l40s", replicas=3, resident_batch=4)), microbatches=2
    )
    assert json.loads(plan.dumps()) == plan.to_dict()
    assert plan.dumps().splitlines() == [
        "{",
        '  "format": "weavejax.plan/1",',
        '  "policy": "custom",',
        '  "model": {',
        '    "name": "m",',
        '    "digest": "000000000000",',
        '    "config": {',
        '      "name": "m"',
        "    }",
        "  },",
        '  "workload": {',
        '    "context": 64,',
        '    "tpot_slo_s": null',
        "  },",
        '  "template": {',
        '    "layers": 1,',
        '    "cuts": [',
        "      3",
        "    ],",
        '    "offset": 0',
        "  },",
        '  "groups": [',
        "    {",
        '      "device": "cpu",',
        '      "tensor_parallel": 1,',
        '      "expert_parallel": 1,',
        '      "attention_data_parallel": 1,',
        '      "replicas": 1,',
        '      "resident_batch": 12',
        "    },",
        "    {",
        '      "device": "l40s",',
        '      "tensor_parallel": 1,',
        '      "expert_parallel": 1,',
        '      "attention_data_parallel": 1,',
        '      "replicas": 3,',
        '      "resident_batch": 4',
        "    }",
        "  ],",
        '  "microbatches": 2',
        "}",
    ]


def test_a_file_holds_the_text_and_gives_the_plan_back(tmp_path):
    plan = default_plan(architecture("gemma-3-4b"), "cad").replace(
        cluster=Cluster.parse("l40s:4"), profile=ProfileRef(name="p", hash="1")
    )
    plan.save(tmp_path / "plan.json")
    assert (tmp_path / "plan.json").read_text() == plan.dumps() + "\n"
    assert Plan.load(tmp_path / "plan.json") == plan


def test_fields_with_a_default_may_be_left_out():
    plan = small_plan()
    data = plan.to_dict()
    del data["policy"], data["microbatches"], data["workload"]["tpot_slo_s"]
    del data["template"]["offset"], data["template"]["layers"]
    for entry in data["groups"]:
        for name in ("tensor_parallel", "expert_parallel", "attention_data_parallel", "replicas"):
            del entry[name]
    assert Plan.from_dict(data) == plan


# -- derived values --------------------------------------------------------------------------------


@given(plans())
@settings(max_examples=30)
def test_rows_divide_over_microbatches_replicas_and_ranks(plan):
    assert plan.microbatch_rows * plan.microbatches == plan.batch
    assert plan.num_devices == sum(g.replicas * g.tensor_parallel for g in plan.groups)
    for g in plan.groups:
        assert g.batch == plan.batch
        assert plan.microbatch_rows % (g.replicas * g.attention_data_parallel) == 0
        assert g.heads_ways * g.attention_data_parallel == g.tensor_parallel
        fields = dataclasses.fields(Parallelism)
        assert all(getattr(g.parallelism, f.name) == getattr(g, f.name) for f in fields)
        assert type(g.parallelism) is Parallelism


@given(templates())
def test_a_template_has_one_stage_more_than_cuts(template):
    assert template.num_stages == len(template.cuts) + 1
    assert template.num_operators == 4 * template.layers
    # The operators before the first block are part of the last stage, so they fit in it.
    assert template.offset + max(template.cuts, default=1) <= template.num_operators


def test_a_prediction_adds_up():
    part = GroupPrediction(
        weight_bytes=1,
        cache_bytes=20,
        buffer_bytes=300,
        reserve_bytes=4000,
        memory_bytes=9999,
        busy_fraction=0.5,
    )
    assert part.needed_bytes == 4321
    prediction = Prediction(
        round_trip_time_s=0.05,
        usd_per_million_tokens=None,
        occupancy=0.5,
        internode_bytes_per_token=0.0,
        groups=(part,),
        stages=(),
        moves=(),
    )
    assert prediction.tokens_per_s(8) == pytest.approx(160)


# -- rules -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: group(tensor_parallel=0), "tensor_parallel must be a whole number >= 1, got 0"),
        (
            lambda: group(tensor_parallel=4, expert_parallel=2),
            "expert_parallel must be 1 or tensor_parallel=4 (it cuts the same devices), got 2",
        ),
        (
            lambda: Parallelism(tensor_parallel=2, attention_data_parallel=3),
            "attention_data_parallel must be 1 or tensor_parallel=2 (it cuts the same devices), "
            "got 3",
        ),
        (lambda: group(replicas=0), "replicas must be a whole number >= 1, got 0"),
        (lambda: group(resident_batch=-1), "resident_batch must be a whole number >= 1, got -1"),
        (lambda: Template(layers=0), "a template spans at least one layer, got layers=0"),
        *(
            (
                lambda cuts=cuts, layers=layers: Template(layers=layers, cuts=cuts),
                "cuts must rise strictly and lie inside the sub-block, between 1 and "
                f"{4 * layers - 1} ({layers} layers of 4 operators), got {list(cuts)}",
            )
            for cuts, layers in (
                ((0,), 1),
                ((4,), 1),
                ((8,), 2),
                ((3, 1), 1),
                ((2, 2), 1),
                ((-1, 2), 1),
            )
        ),
        *(
            (
                lambda cuts=cuts, offset=offset: Template(cuts=cuts, offset=offset),
                f"offset must lie between 0 and {tail}, the length of the last stage (the "
                f"operators before the first block are its tail), got {offset}; start the "
                "template at an earlier cut instead",
            )
            for cuts, offset, tail in (((1,), 4, 3), ((1, 3), 2, 1), ((), 4, 3), ((3,), -1, 1))
        ),
        (lambda: Workload(context=0), "context must be a whole number >= 1, got 0"),
        *(
            (
                lambda slo=slo: Workload(context=1, tpot_slo_s=slo),
                f"tpot_slo_s must be a positive number of seconds, got {slo}",
            )
            for slo in (float("nan"), float("inf"), 0.0, -0.1)
        ),
        (lambda: small_plan(groups=()), "a plan needs at least one device group, got none"),
        (
            lambda: small_plan(template=Template(cuts=(1, 3))),
            "stages of the template must be a multiple of the 2 groups "
            "(stage j belongs to group j mod K), got 3 stages",
        ),
        (lambda: small_plan(microbatches=0), "microbatches must be a whole number >= 1, got 0"),
        (
            lambda: small_plan(groups=(group(replicas=2), group(replicas=3))),
            "replicas x resident_batch must be the same global batch in every group, "
            "got 2 x 12, 3 x 12",
        ),
        (
            lambda: small_plan(microbatches=5),
            "group 0: resident_batch must divide by microbatches x attention_data_parallel = 5, "
            "got 12",
        ),
        (
            lambda: small_plan(
                groups=(group(), group(tensor_parallel=8, attention_data_parallel=8)),
                microbatches=3,
            ),
            "group 1: resident_batch must divide by microbatches x attention_data_parallel = 24, "
            "got 12",
        ),
        (
            lambda: small_plan().replace(microbatches=7),
            "group 0: resident_batch must divide by microbatches x attention_data_parallel = 7, "
            "got 12",
        ),
    ],
)
def test_a_broken_rule_is_said_with_its_numbers(make, message):
    with pytest.raises(PlanError, match="^" + re.escape(message) + "$"):
        make()
