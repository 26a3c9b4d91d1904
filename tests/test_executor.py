"""The executor by itself: what lives on the devices, and that queued work never hangs."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from serving import group, make_plan, nine_heads, tiny_model

from weavejax.default_plans import default_plan
from weavejax.models.build import build_operator
from weavejax.models.costs import cache_bytes, stored_params
from weavejax.models.operator import Operator
from weavejax.models.specs import OperatorSpec
from weavejax.plan import PlanError, Template
from weavejax.runtime.batches import greedy_rows
from weavejax.runtime.executor import Executor
from weavejax.runtime.programs import shared_programs

QUEUE = """
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 3)
from serving import group, make_plan, nine_heads
from weavejax.plan import Template
from weavejax.runtime.executor import Executor
model = nine_heads()
plan = make_plan(model, Template(), group(2, tensor_parallel=3), context=16)
executor = Executor(model, plan, chunks=(8,))
for _ in range(80):
    executor.decode({0: 16})
executor.wait()
"""


@pytest.mark.slow
def test_many_queued_iterations_with_collectives_do_not_hang() -> None:
    """As many devices as ranks: the smallest thread pool there is."""
    tests = Path(__file__).parent
    subprocess.run([sys.executable, "-c", QUEUE], cwd=tests, timeout=240, check=True)


def test_devices_hold_what_the_specs_say() -> None:
    model = nine_heads()
    plan = make_plan(model, Template(cuts=(3,)), group(4, replicas=2), group(4), context=32)
    executor = Executor(model, plan, chunks=(8,))
    held = executor.live_bytes()
    operators = [[], []]
    for stage in executor.stages:
        ops = (stage.embed, *stage.operators, stage.head)
        operators[stage.owner] += [op for op in ops if op is not None]
    for index, mesh in enumerate(executor.meshes):
        rows = plan.groups[index].resident_batch
        expected = 4 * stored_params(operators[index])
        expected += sum(cache_bytes(op, rows, 32, dtype_bytes=4) for op in operators[index])
        assert {held[device] for device in mesh.devices.flat} == {expected}


def test_a_tied_weight_is_stored_once_per_group() -> None:
    model = nine_heads()
    plan = make_plan(model, Template(), group(2), context=16)
    weights = Executor(model, plan, chunks=(8,)).groups[0].weights
    head = 4 * model.config.num_layers
    assert weights[head]["unembed"] is weights[-1]["embedding"]


def test_too_few_devices_say_how_many_are_needed() -> None:
    model = tiny_model("llama-3.1-8b")
    plan = make_plan(model, Template(cuts=(3,)), group(8, replicas=8), group(8))
    with pytest.raises(PlanError, match=r"needs 9 devices \(8 \+ 1 .*got 8 cpu.*--cpu-devices 9"):
        Executor(model, plan)


def test_a_plan_for_another_model_is_refused() -> None:
    plan = make_plan(nine_heads(), Template(), group(2))
    with pytest.raises(PlanError, match=r"for model 'nine-heads'.*got model 'llama-3.1-8b-tiny'"):
        Executor(tiny_model("llama-3.1-8b"), plan)


def test_idle_rows_and_other_microbatches_change_nothing() -> None:
    model = nine_heads()
    plan = make_plan(model, Template(), group(4), microbatches=2, context=16)
    executor = Executor(model, plan, chunks=(8,))
    [runner] = executor.groups
    before = jax.tree.map(np.asarray, runner.caches)
    executor.decode({0: 16, 1: 16})  # every row is idle
    rows = np.array([1, 0], np.int32)
    executor.set_rows(0, np.zeros(2, np.int32), rows, greedy_rows(2))
    executor.decode({0: 16})
    after = jax.tree.map(np.asarray, runner.caches)
    for (stage, microbatch), caches in after.items():
        for old, new in zip(before[stage, microbatch], caches, strict=True):
            changed = [not np.array_equal(old[r], new[r]) for r in range(2)]
            assert changed == ([True, False] if microbatch == 0 else [False, False])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("slots", [1, 2])
def test_a_decode_step_copies_no_cache(slots: int, dtype: str) -> None:
    """A new token is written in place, into the donated cache, for one row too."""
    text = decode_program(slots, dtype)
    kept = {"float32": "f32", "bfloat16": "u16"}[dtype]
    for shape in (f"[{slots},3,16,512]", f"[{slots},3,512,16]"):
        assert f"{kept}{shape}" in text
        made = [line for line in text.splitlines() if re.search(rf"= \w+{re.escape(shape)}", line)]
        assert not [line for line in made if " copy(" in line or f"= {kept}{shape}" not in line]


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_no_bfloat16_weight_is_widened(slots: int) -> None:
    """Products take them as they are, for a single row too."""
    text = decode_program(slots, "bfloat16")
    smallest = 72 * 3 * 48  # of the matrices; hidden is 72, three heads of 16 a group
    wide = [math.prod(map(int, shape.split(","))) for shape in re.findall(r"f32\[([\d,]+)\]", text)]
    assert wide and max(wide) < smallest
    assert "bf16[2,96,72]" in text  # gate and up
    assert "bf16[330,72]" in text  # the head


def decode_program(slots: int, dtype: str) -> str:
    """What XLA made of a decode step that reads a quarter of its context, and of its head."""
    model = nine_heads()
    plan = make_plan(model, Template(), group(slots), context=512)
    executor = Executor(model, plan, chunks=(8,), dtype=dtype)
    [programs] = [group.programs for group in executor.groups]
    [only] = executor.stages
    shape = programs.shape(1, 128, prefill=False)
    return programs.body(only, shape).as_text() + programs.head(only, shape).as_text()


def test_operators_that_are_alike_are_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their layer, and in all programs of as many tokens; attention once a prefix."""
    traced: Counter[str] = Counter()

    def counting(op: OperatorSpec, *rest: Any) -> Operator:
        traced[op.kind] += 1
        return build_operator(op, *rest)

    monkeypatch.setattr("weavejax.runtime.stage.build_operator", counting)
    shared_programs.cache_clear()
    decode_program(2, "float32")
    passes, prefixes = 2, 3  # decode and a chunk of 8; 128, 256 and 512
    layers = {kind: traced[kind] for kind in ("attn_in", "attn_out", "ffn", "attn_core")}
    assert layers == dict.fromkeys(layers, passes) | {"attn_core": passes * prefixes}


def test_only_stages_that_read_positions_take_them() -> None:
    """Every argument costs the host: the feed-forwards of AFD get tensors and weights alone."""
    model = nine_heads()
    plan = default_plan(model.config, "afd", slots=2, context=64)
    executor = Executor(model, plan, chunks=(8,), oversubscribe=True)
    for runner in executor.groups:
        for stage in runner.stages:
            program = runner.programs.body(stage, runner.programs.shape(1, 64, prefill=False))
            operators = {op.kind for op in stage.operators}
            assert ("s32[2,2]" in program.as_text()) == (operators != {"ffn"})
