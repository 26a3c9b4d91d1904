"""Folding keeps what a plan computes and fits the devices there are."""

from __future__ import annotations

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import group, make_plan, nine_heads, random_prompts
from strategies import plans

from weavejax.fold import fold_plan
from weavejax.plan import Plan, PlanError, Template
from weavejax.request import SamplingParams
from weavejax.serve import serve


@given(plan=plans(), devices=st.integers(1, 9))
def test_folded_groups_fit_and_hold_the_same_rows(plan: Plan, devices: int) -> None:
    folded = fold_plan(plan, devices)
    for before, after in zip(plan.groups, folded.groups, strict=True):
        assert after.num_devices <= devices
        assert after.batch == before.batch
        assert before.tensor_parallel % after.tensor_parallel == 0
        assert before.replicas % after.replicas == 0
        if before.num_devices <= devices:
            assert after == before
    assert folded.template == plan.template and folded.microbatches == plan.microbatches
    assert fold_plan(folded, devices) == folded


def test_a_plan_of_five_devices_runs_on_one() -> None:
    model = nine_heads()
    plan = make_plan(
        model, Template(cuts=(3,)), group(6, replicas=2), group(6, tensor_parallel=3), context=32
    )
    prompts = random_prompts(model, (3, 9))
    params = SamplingParams(max_tokens=6)
    outputs = []
    for devices in (jax.devices()[:5], jax.devices()[:1]):
        with serve(model, plan, devices=devices, oversubscribe=True, prefill_chunks=(8,)) as engine:
            assert engine.plan == plan
            outputs.append([o.token_ids for o in engine.generate(prompts, params)])
    assert outputs[0] == outputs[1]


def test_a_plan_that_no_devices_could_run_is_refused_folded_too() -> None:
    """Nine heads do not divide over seven ranks, whether or not there are seven devices."""
    model = nine_heads()
    plan = make_plan(model, Template(), group(2, tensor_parallel=7))
    with pytest.raises(PlanError, match="7"):
        serve(model, plan, oversubscribe=True)
