"""Any plan gives the tokens of the colocated plan."""

from __future__ import annotations

import pytest
from serving import group, make_plan, nine_heads, random_prompts

from weavejax.plan import Plan, Template
from weavejax.request import Output, SamplingParams
from weavejax.serve import serve

LENGTHS = (1, 2, 5, 8, 9, 16, 17, 25, 33, 40, 3, 7, 11, 1)
PARAMS = SamplingParams(max_tokens=12, logprobs=True)


def plans() -> dict[str, Plan]:
    """Templates of one to three groups, with and without offsets, cut in every way we offer."""
    model, t = nine_heads(), Template
    three, two = group(12, replicas=3), group(12, replicas=2)
    one, cut = group(12), group(12, tensor_parallel=3)
    by_rows = group(12, tensor_parallel=3, attention_data_parallel=3)
    return {
        "afd": make_plan(model, t(cuts=(3,)), one, one),
        "cad": make_plan(model, t(cuts=(1,), offset=1), one, one),
        "before core": make_plan(model, t(cuts=(1,)), one, one, microbatches=2),
        "after core": make_plan(model, t(cuts=(2,)), one, one, microbatches=3),
        "offset 2": make_plan(model, t(cuts=(2,), offset=2), one, one, microbatches=4),
        "three groups": make_plan(model, t(cuts=(1, 2)), one, one, one),
        "three groups, offset": make_plan(model, t(cuts=(1, 3), offset=1), one, three, two),
        "2 to 1": make_plan(model, t(cuts=(3,)), two, one, microbatches=2),
        "1 to 2": make_plan(model, t(cuts=(3,)), one, two),
        "3 to 2": make_plan(model, t(cuts=(3,)), three, two, microbatches=2),
        "2 to 3, cad": make_plan(model, t(cuts=(1,), offset=1), two, three, microbatches=2),
        "two layers, four stages": make_plan(model, t(layers=2, cuts=(3, 4, 7)), one, one),
        "pipeline": make_plan(model, t(layers=3, cuts=(4, 8)), one, one, one, microbatches=3),
        "truncated": make_plan(model, t(layers=2, cuts=(5,), offset=2), one, one),
        "tensor parallel": make_plan(model, t(), cut),
        "cad, 3 to 1": make_plan(model, t(cuts=(1,), offset=1), cut, one, microbatches=3),
        "cad, 1 to 3": make_plan(model, t(cuts=(1,), offset=1), one, cut),
        "colocated replicas": make_plan(model, t(), three, microbatches=2),
        "rows for attention": make_plan(model, t(), by_rows),
        "rows for attention, afd": make_plan(model, t(cuts=(3,)), by_rows, two, microbatches=2),
    }


def run(plan: Plan) -> list[Output]:
    model = nine_heads()
    with serve(model, plan, prefill_chunks=(8,)) as engine:
        return engine.generate(random_prompts(model, LENGTHS), PARAMS)


@pytest.fixture(scope="module")
def colocated() -> list[Output]:
    return run(make_plan(nine_heads(), Template(), group(12)))


def test_the_reference_says_something(colocated: list[Output]) -> None:
    assert all(len(output.token_ids) == 12 for output in colocated)
    assert len({output.token_ids for output in colocated}) == len(LENGTHS)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(plans()))
def test_plan_gives_the_tokens_of_colocated(name: str, colocated: list[Output]) -> None:
    outputs = run(plans()[name])
    assert [o.token_ids for o in outputs] == [o.token_ids for o in colocated]
    for ours, theirs in zip(outputs, colocated, strict=True):
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
