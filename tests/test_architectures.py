"""Every architecture under every template and kind of parallelism: the tokens of colocated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pytest
from serving import group, make_plan, random_prompts, tiny_model

from weavejax.models.loading import Model
from weavejax.models.random_source import RandomSource
from weavejax.plan import DeviceGroup, Plan, Template
from weavejax.request import Output, SamplingParams
from weavejax.serve import serve

pytestmark = pytest.mark.slow
MODELS = (
    "llama-3.1-8b",
    "qwen3-0.6b",
    "gemma-3-27b",
    "qwen3-235b-a22b",
    "qwen3-next-80b-a3b",
    "gpt-oss-120b",
)
# More requests than slots, so that slots are used again and idle at the end; past the window of
# 12 within the prompt, within the answer, and within neither; whole and broken chunks of 8.
LENGTHS = (1, 2, 8, 17, 30, 12, 5, 1, 20, 3)
PARAMS = SamplingParams(max_tokens=14, logprobs=True)
BATCH = 8


@lru_cache
def _model(name: str) -> Model:
    """A tiny model with at least four layers, and not a multiple of three."""
    tiny = tiny_model(name).config
    kinds = tiny.layer_kinds * (2 if tiny.num_layers == 2 else 1)
    config = dataclasses.replace(tiny, layer_kinds=kinds)
    return Model(config=config, source=RandomSource(config))


def _cut(model: Model, ways: int, *, experts: bool = False, rows: bool = False) -> DeviceGroup:
    """A group of ``ways`` ranks that cut heads or rows, and hidden widths or experts."""
    return group(
        BATCH,
        tensor_parallel=ways,
        expert_parallel=ways if experts and model.config.moe else 1,
        attention_data_parallel=ways if rows else 1,
    )


def _afd(model: Model) -> Plan:
    return make_plan(
        model,
        Template(cuts=(3,)),
        group(BATCH, replicas=2),
        _cut(model, 4, experts=True),
        microbatches=2,
    )


def _cad(model: Model) -> Plan:
    return make_plan(
        model,
        Template(cuts=(1,), offset=1),
        _cut(model, 4),
        _cut(model, 2, rows=True),
        microbatches=2,
    )


def _single_rows(model: Model) -> Plan:
    """Cut before the core; every microbatch is one row."""
    return make_plan(model, Template(cuts=(1,)), group(4), group(4), microbatches=4)


def _inside_the_block(model: Model) -> Plan:
    """Sub-blocks of two layers, cut inside both: attention and feed-forward change places."""
    return make_plan(
        model,
        Template(layers=2, cuts=(3, 4, 7)),
        _cut(model, 4, experts=True, rows=True),
        _cut(model, 2),
    )


def _three_groups(model: Model) -> Plan:
    return make_plan(
        model,
        Template(cuts=(1, 2)),
        _cut(model, 2),
        group(BATCH),
        _cut(model, 2, experts=True),
        microbatches=2,
    )


def _three_groups_offset(model: Model) -> Plan:
    return make_plan(
        model,
        Template(cuts=(1, 3), offset=1),
        group(BATCH),
        group(BATCH, replicas=2),
        _cut(model, 4, rows=True),
    )


def _truncated(model: Model) -> Plan:
    """No model here has a multiple of three layers."""
    return make_plan(
        model,
        Template(layers=3, cuts=(5,), offset=2),
        _cut(model, 2, experts=True),
        group(BATCH),
    )


def _one_group(model: Model) -> Plan:
    """Colocated, rows cut for attention and experts (or widths) for the rest."""
    return make_plan(model, Template(), _cut(model, 2, experts=True, rows=True), microbatches=4)


PLANS: dict[str, Callable[[Model], Plan]] = {
    "afd": _afd,
    "cad": _cad,
    "single rows": _single_rows,
    "inside the block": _inside_the_block,
    "three groups": _three_groups,
    "three groups, offset": _three_groups_offset,
    "truncated": _truncated,
    "one group": _one_group,
}


def _generate(model: Model, plan: Plan) -> list[Output]:
    with serve(model, plan, prefill_chunks=(8,)) as engine:
        return engine.generate(random_prompts(model, LENGTHS), PARAMS)


@lru_cache
def _colocated(name: str) -> list[Output]:
    model = _model(name)
    return _generate(model, make_plan(model, Template(), group(BATCH)))


def _assert_equal(outputs: list[Output], reference: list[Output]) -> None:
    assert [o.token_ids for o in outputs] == [o.token_ids for o in reference]
    for ours, theirs in zip(outputs, reference, strict=True):
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-3)


@pytest.mark.parametrize("plan", list(PLANS))
@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_colocated(name: str, plan: str) -> None:
    model = _model(name)
    assert model.config.num_layers % 3
    reference = _colocated(name)
    assert len({output.token_ids for output in reference}) == len(LENGTHS)
    _assert_equal(_generate(model, PLANS[plan](model)), reference)


def test_the_plans_cover_what_they_should() -> None:
    """Every kind of parallelism, at both sizes."""
    plans = [make(_model("gpt-oss-120b")) for make in PLANS.values()]
    groups = [group for plan in plans for group in plan.groups]

    def sizes(field: str, where: Any = lambda g: True) -> set[int]:
        return {getattr(g, field) for g in groups if where(g)}

    assert sizes("tensor_parallel", lambda g: g.expert_parallel == 1) == {1, 2, 4}
    assert sizes("expert_parallel") == {1, 2, 4}
    assert sizes("attention_data_parallel", lambda g: g.expert_parallel > 1) == {1, 2, 4}
    assert sizes("attention_data_parallel", lambda g: g.expert_parallel == 1) == {1, 2, 4}
    assert {plan.microbatches for plan in plans} == {1, 2, 4}
    assert {len(plan.groups) for plan in plans} == {1, 2, 3}
    assert any(plan.microbatch_rows == 1 for plan in plans)


@lru_cache
def _forty_layers() -> Model:
    tiny = tiny_model("gemma-3-27b").config
    kinds = (tiny.layer_kinds[:6] * 7)[:40]
    config = dataclasses.replace(tiny, name="forty", layer_kinds=kinds)
    return Model(config=config, source=RandomSource(config))


def test_forty_layers_of_gemma_serve() -> None:
    """Six blocks of six layers and a truncated one that ends inside the second of three stages."""
    model = _forty_layers()
    reference = _generate(model, make_plan(model, Template(), group(4)))
    template = Template(layers=6, cuts=(8, 16))
    plan = make_plan(model, template, group(4), group(4), group(4), microbatches=2)
    _assert_equal(_generate(model, plan), reference)
