"""The rules table, and the forms of weights, caches and travelling tensors."""

from __future__ import annotations

import math
import re

import pytest
from jax.sharding import PartitionSpec
from strategies import ARCHITECTURES, architecture

from weavejax.models import operator_sequence
from weavejax.models.specs import ParamSpec, TensorSpec
from weavejax.plan import Parallelism
from weavejax.runtime.sharding import (
    axis_rules,
    param_spec,
    row_spec,
    state_shape,
    state_spec,
    wire_is_cut,
    wire_rows,
    wire_spec,
)

ONE = Parallelism()
TENSOR = Parallelism(tensor_parallel=4)
EXPERT = Parallelism(tensor_parallel=4, expert_parallel=4)
ROWS = Parallelism(tensor_parallel=4, attention_data_parallel=4)
ALL = (ONE, TENSOR, EXPERT, ROWS)
MODEL = "model"


@pytest.mark.parametrize(
    ("parallelism", "cut"),
    [
        (ONE, {"vocab", "mlp", "expert_mlp"}),
        (TENSOR, {"vocab", "mlp", "expert_mlp", "heads"}),
        (EXPERT, {"vocab", "mlp", "experts", "heads"}),
        (ROWS, {"vocab", "mlp", "expert_mlp"}),
    ],
)
def test_the_rules_table(parallelism, cut):
    rules = axis_rules(parallelism)
    assert set(rules) == {"vocab", "mlp", "experts", "expert_mlp", "heads"}
    assert {axis for axis, mesh_axis in rules.items() if mesh_axis == MODEL} == cut
    assert all(mesh_axis in (None, MODEL) for mesh_axis in rules.values())


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("parallelism", ALL)
def test_every_weight_divides_over_the_ranks(name, parallelism):
    sequence = operator_sequence(architecture(name), parallelism.heads_ways)
    cut = set()
    for op in sequence:
        for param in op.params:
            spec = param_spec(param, parallelism)
            assert len(spec) == len(param.shape)
            for size, axis in zip(param.shape, spec, strict=True):
                assert axis is None or size % parallelism.tensor_parallel == 0
            if MODEL in spec:
                cut.add(op.kind)
    # Norms are kept whole; every kind of operator has something to cut, unless rows are cut.
    heads = {"attn_in", "attn_out"} if parallelism.heads_ways > 1 else set()
    assert cut - {"attn_core"} == {"embed", "ffn", "head"} | heads


def test_two_axes_on_one_mesh_axis_are_refused():
    param = ParamSpec("odd", (8, 8), ("vocab", "mlp"))
    message = (
        "every axis of weight 'odd' needs a mesh axis of its own, "
        "got ('vocab', 'mlp') -> ['model', 'model']"
    )
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        param_spec(param, TENSOR)
    experts = ParamSpec("experts", (4, 8, 8), ("experts", None, "expert_mlp"))
    assert param_spec(experts, TENSOR) == PartitionSpec(None, None, MODEL)
    assert param_spec(experts, EXPERT) == PartitionSpec(MODEL, None, None)


# -- travelling tensors ----------------------------------------------------------------------------

HIDDEN = TensorSpec("x.0", (64,), ("hidden",))
QUERIES = TensorSpec("q.0", (8, 16), ("heads", None))
FEW = TensorSpec("k.0", (2, 16), ("kv_heads", None))
IDS = TensorSpec("ids", (), ())


@pytest.mark.parametrize(
    ("tensor", "parallelism", "spec"),
    [
        (IDS, ONE, PartitionSpec("replica")),
        (IDS, TENSOR, PartitionSpec("replica")),
        (IDS, ROWS, PartitionSpec(("replica", MODEL))),
        (HIDDEN, ONE, PartitionSpec("replica", None, None)),
        (HIDDEN, TENSOR, PartitionSpec("replica", None, MODEL)),
        (HIDDEN, EXPERT, PartitionSpec("replica", None, MODEL)),
        (HIDDEN, ROWS, PartitionSpec(("replica", MODEL), None, None)),
        (QUERIES, TENSOR, PartitionSpec("replica", None, MODEL)),
        (FEW, TENSOR, PartitionSpec("replica", None, None)),  # two heads do not divide over four
        (FEW, ROWS, PartitionSpec(("replica", MODEL), None, None)),
    ],
)
def test_wire_forms(tensor, parallelism, spec):
    assert wire_spec(tensor, parallelism) == spec
    assert wire_is_cut(tensor, parallelism) == (spec[2:] == (MODEL,))
    assert wire_rows(parallelism) == spec[0]
    assert row_spec(parallelism) == PartitionSpec("replica")


# -- caches ----------------------------------------------------------------------------------------


def caches(name, parallelism, rows=6, context=40):
    sequence = operator_sequence(architecture(name), parallelism.heads_ways)
    for op in sequence:
        for state in op.state:
            yield op, state, state_shape(state, op, rows, context, parallelism)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("ways", [1, 2, 4, 8])
def test_ranks_together_store_what_the_specs_say_of_one(name, ways):
    parallelism = Parallelism(tensor_parallel=ways)
    for _, state, shape in caches(name, parallelism):
        assert math.prod(shape) == 6 * ways * state.elements(40, ways)
        assert shape[0] == 6 and shape[1] % ways == 0
        assert state_spec(parallelism) == PartitionSpec("replica", MODEL if ways > 1 else None)


def test_key_value_heads_fewer_than_ranks_are_repeated():
    config = architecture("llama-3.1-8b")
    heads = config.num_kv_heads
    assert heads < 8
    shapes = {
        ways: {shape for *_, shape in caches("llama-3.1-8b", Parallelism(tensor_parallel=ways))}
        for ways in (1, heads, 8)
    }
    width = config.head_dim
    assert shapes[1] == shapes[heads] == {(6, heads, 40, width), (6, heads, width, 40)}
    assert shapes[8] == {(6, 8, 40, width), (6, 8, width, 40)}
    by_rows = Parallelism(tensor_parallel=8, attention_data_parallel=8)
    assert {shape for *_, shape in caches("llama-3.1-8b", by_rows)} == shapes[1]
    assert state_spec(by_rows) == PartitionSpec(("replica", MODEL))


def test_windows_bound_positions_and_recurrent_states_have_none():
    config = architecture("gemma-3-4b")
    positions = {
        config.layer_kinds[op.layer].attention: shape[2]
        for op, _, shape in caches(config.name[:-5], ONE)
    }
    assert positions == {"sliding": config.sliding_window, "full": 40}
    linear = architecture("qwen3-next-80b-a3b").linear
    by_name = {
        state.name: shape
        for op, state, shape in caches("qwen3-next-80b-a3b", ONE)
        if state.length == "constant"
    }
    keys, ratio = linear.num_key_heads, linear.num_value_heads // linear.num_key_heads
    mixed = 2 * linear.key_head_dim + ratio * linear.value_head_dim
    assert by_name == {
        "conv": (6, keys, mixed, linear.conv_kernel - 1),
        "recurrent": (6, keys, ratio, linear.key_head_dim, linear.value_head_dim),
    }
