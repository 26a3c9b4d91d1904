"""Plan data that is wrong is refused, and the message names the field."""

from __future__ import annotations

import json
import re

import pytest
from small_plans import small_plan

from weavejax.plan import (
    Plan,
    PlanError,
)

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
