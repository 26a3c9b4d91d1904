"""Plans as data: validation, and JSON in and out."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
from hypothesis import given, settings
from strategies import architecture, plans, predictions, templates

from weavejax.default_plans import default_plan
from weavejax.meshes.cluster import Cluster
from weavejax.plan import (
    DeviceGroup,
    ModelRef,
    Parallelism,
    Plan,
    PlanError,
    ProfileRef,
    Template,
    Workload,
)
from weavejax.prediction import GroupPrediction, Prediction

AFD = Template(cuts=(3,))


def group(**changes):
    return DeviceGroup(**({"device": "cpu", "resident_batch": 12} | changes))


def small_plan(**changes):
    parts = {
        "model": ModelRef(name="m", digest="0" * 12, config={"name": "m"}),
        "workload": Workload(context=64),
        "template": AFD,
        "groups": (group(), group()),
    }
    return Plan(**(parts | changes))


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


DELETE = object()


def changed(*path, to):
    """The dictionary of a good plan with one value replaced or removed."""
    data = json.loads(small_plan().dumps())
    at = data
    for key in path[:-1]:
        at = at[key]
    if to is DELETE:
        del at[path[-1]]
    else:
        at[path[-1]] = to
    return data


PARALLEL_FIELDS = "['tensor_parallel', 'expert_parallel', 'attention_data_parallel'"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([1], "a plan is a JSON object, got list"),
        ({}, "a plan file starts with \"format\": 'weavejax.plan/1', got None"),
        (
            changed("format", to="weavejax.plan/2"),
            "a plan file starts with \"format\": 'weavejax.plan/1', got 'weavejax.plan/2'",
        ),
        (changed("sloths", to=1), "a plan has no field sloths; it has ['cluster', 'format', "),
        (changed("model", to=DELETE), "model must be an object, got None"),
        (changed("model", "config", to=[1]), "model.config must be an object, got [1]"),
        (changed("model", "name", to=3), "model.name must be a string, got 3"),
        (
            changed("model", "digest", to=DELETE),
            "model: unknown [], missing ['digest']; the fields are ['name', 'digest', 'config']",
        ),
        (changed("workload", to="long"), "workload must be an object, got 'long'"),
        (
            changed("workload", "context", to=DELETE),
            "workload: unknown [], missing ['context']; the fields are ['context', 'tpot_slo_s']",
        ),
        (changed("workload", "context", to=8.0), "workload.context must be a whole number, got 8."),
        (changed("workload", "context", to=True), "workload.context must be a whole number, got T"),
        (
            changed("workload", "tpot_slo_s", to="fast"),
            "workload.tpot_slo_s must be a number, got 'fast'",
        ),
        (
            changed("workload", "tpot_slo_s", to=float("nan")),
            "tpot_slo_s must be a positive number of seconds, got nan",
        ),
        (changed("template", "cuts", to=3), "template.cuts must be a list of whole numbers, got 3"),
        (
            changed("template", "cuts", to=[True]),
            "template.cuts must be a list of whole numbers, got [True]",
        ),
        (changed("template", "cuts", to=[9]), "cuts must rise strictly and lie inside"),
        (
            changed("template", "cut", to=[3]),
            "template: unknown ['cut'], missing []; the fields are ['layers', 'cuts', 'offset']",
        ),
        (changed("groups", to=DELETE), "groups must be a list of objects, got None"),
        (changed("groups", to=5), "groups must be a list of objects, got 5"),
        (changed("groups", to={"device": "cpu"}), "groups must be a list of objects, got {"),
        (changed("groups", to=[]), "a plan needs at least one device group, got none"),
        (changed("groups", 1, to="cpu"), "groups[1] must be an object, got 'cpu'"),
        (
            changed("groups", 1, "resident_batch", to=DELETE),
            f"groups[1]: unknown [], missing ['resident_batch']; the fields are {PARALLEL_FIELDS}",
        ),
        (
            changed("groups", 0, "replicas", to="2"),
            "groups[0].replicas must be a whole number, got '2'",
        ),
        (changed("groups", 0, "device", to=None), "groups[0].device must be a string, got None"),
        (changed("microbatches", to=1.5), "microbatches must be a whole number, got 1.5"),
        (changed("microbatches", to=None), "microbatches must be a whole number, got None"),
        (changed("policy", to=1), "policy must be a string, got 1"),
        (changed("cluster", to="h100:2"), "cluster must be an object, got 'h100:2'"),
        (
            changed("cluster", to={"format": "other"}),
            "cluster: a cluster needs 'format': 'weavejax.cluster/1', got 'other'",
        ),
        (
            changed("profile", to={"name": "p"}),
            "profile: unknown [], missing ['hash']; the fields are ['name', 'hash']",
        ),
        (changed("search_limits", to=[1]), "search_limits must be an object, got [1]"),
        (changed("prediction", to=[]), "prediction must be an object, got []"),
        (changed("prediction", to={"stages": []}), "prediction: missing 'groups'"),
        (
            changed("prediction", to={"groups": [{"bytes": 1}], "stages": [], "moves": []}),
            "prediction: GroupPrediction.__init__() got an unexpected keyword argument 'bytes'",
        ),
    ],
)
def test_bad_plan_data_names_the_field(data, message, tmp_path):
    with pytest.raises(PlanError, match="^" + re.escape(message)):
        Plan.from_dict(data)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    with pytest.raises(PlanError, match="^" + re.escape(f"{path}: {message}")):
        Plan.load(path)


def test_a_missing_file_and_a_file_that_is_no_json_are_named(tmp_path):
    path = tmp_path / "plan.json"
    with pytest.raises(PlanError, match=re.escape(f"plan file '{path}' does not exist")):
        Plan.load(path)
    path.write_text('{"format": ')
    with pytest.raises(PlanError, match=re.escape(f"plan file '{path}' is not JSON: Expecting")):
        Plan.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError, match=re.escape(f"plan file '{path}' is not JSON: ")):
        Plan.load(path)
