"""Checking plans: equal plans agree, and a planted error is found and named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from serving import group, make_plan, nine_heads

from weavejax.cli.check import report_lines
from weavejax.measure.checking import (
    check_executors,
    check_plan,
    compare_logits,
)
from weavejax.measure.reference import transformers_logits
from weavejax.models.loading import Model, load_model
from weavejax.plan import Template
from weavejax.runtime.executor import Executor

CHUNK = 8
SLOTS, PROMPT, LENGTH = 4, 11, 14
TOKENS = np.random.default_rng(0).integers(0, 330, (SLOTS, LENGTH)).astype(np.int32)


@dataclass(frozen=True, kw_only=True)
class Flawed(Model):
    """One weight of one operator with the wrong sign."""

    operator: str
    weight: str

    def iter_params(self, op, *, heads_ways=1, dtype=None) -> Iterator[tuple[str, Any]]:
        for name, value in super().iter_params(op, heads_ways=heads_ways, dtype=dtype):
            yield name, -value if (op.name, name) == (self.operator, self.weight) else value


def executor(model: Model, template=None, *groups, microbatches=1) -> Executor:
    plan = make_plan(
        model,
        template or Template(),
        *(groups or (group(SLOTS),)),
        microbatches=microbatches,
        context=16,
    )
    return Executor(model, plan, oversubscribe=True, chunks=(CHUNK,))


@pytest.fixture(scope="module")
def reference() -> Executor:
    return executor(nine_heads())


def check(plan_executor: Executor, reference: Executor, **options: Any):
    return check_executors(
        nine_heads(), plan_executor, reference, TOKENS, prompt=PROMPT, tolerance=1e-3, **options
    )


@pytest.mark.parametrize(
    ("operator", "weight", "owner"),
    [("layers.1.attn_out", "o", 0), ("layers.2.ffn", "down", 1), ("head", "unembed", 1)],
)
def test_a_planted_error_is_found_and_named(operator, weight, owner, reference):
    good = nine_heads()
    flawed = Flawed(config=good.config, source=good.source, operator=operator, weight=weight)
    groups = (group(SLOTS, replicas=2), group(SLOTS))
    plan_executor = executor(flawed, Template(cuts=(3,)), *groups, microbatches=2)
    found = check(plan_executor, reference)
    assert not found.good
    assert found.culprit is not None
    assert (found.culprit.operator, found.culprit.group) == (operator, owner)
    assert any(not one.near_tie for one in found.comparisons[0].disagreements)
    text = "\n".join(report_lines(found))
    assert f"first operator whose output differs: {operator} on group {owner}" in text
    assert text.endswith("the plan computes something else")


def test_plans_that_are_right_agree_with_colocated_at_every_slot():
    model = nine_heads()
    plan = make_plan(
        model,
        Template(cuts=(1,), offset=1),
        group(SLOTS, replicas=2),
        group(SLOTS),
        microbatches=2,
        context=16,
    )
    found = check_plan(model, plan, TOKENS, prompt=PROMPT)
    assert found.good and found.culprit is None and found.sampling_errors == 0
    assert found.comparisons[0].max_difference == 0
    assert found.comparisons[0].positions == SLOTS * LENGTH
    assert report_lines(found)[-1] == "the plan computes the same"


def test_disagreements_are_near_ties_or_errors():
    theirs = np.array([[[0.0, 5.0, 4.9999], [0.0, 5.0, 4.0]]])
    ours = np.array([[[0.0, 4.9999, 5.0], [0.0, 4.0, 5.0]]])
    found = compare_logits("x", ours, theirs, 1e-3)
    assert [one.near_tie for one in found.disagreements] == [True, False]
    assert found.disagreements[1].margin == pytest.approx(1.0)
    assert not found.good
    assert compare_logits("x", ours[:, :1], theirs[:, :1], 1e-3).good


@pytest.mark.slow
def test_logits_are_those_of_transformers(tmp_path):
    pytest.importorskip("transformers")
    import hf_tiny

    hf_tiny.write_hf_checkpoint("qwen3", tmp_path)
    model = load_model(tmp_path)
    tokens = np.random.default_rng(1).integers(3, 320, (2, 9)).astype(np.int32)
    theirs, note = transformers_logits(model, tokens)
    assert theirs is not None and "transformers" in note
    plan = make_plan(model, Template(cuts=(3,)), group(2), group(2), context=16)
    found = check_plan(model, plan, tokens, prompt=5, theirs=theirs)
    assert found.good and [c.reference for c in found.comparisons] == ["colocated", "transformers"]
    nothing, note = transformers_logits(nine_heads(), tokens)
    assert nothing is None and "no config for nine-heads" in note
