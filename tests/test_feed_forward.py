"""Routed experts, however the router spreads tokens, against an obvious loop over tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from single_operator import Arrays, make_operator, make_step

from weavejax.meshes.submesh import MODEL
from weavejax.models import LayerKind, ModelConfig, MoeConfig
from weavejax.models.build import build_operator
from weavejax.models.feed_forward import MoeFeedForward, activate, gated_mlp
from weavejax.plan import Parallelism
from weavejax.runtime.sharding import param_spec

HIDDEN, EXPERTS, TOP, INNER = 16, 8, 3, 12
QWEN = ModelConfig(
    name="routed",
    model_type="qwen3_next",
    vocab_size=8,
    hidden_size=HIDDEN,
    layer_kinds=(LayerKind(attention="full", ffn="moe"),),
    num_heads=2,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=8,
    max_position=64,
    moe=MoeConfig(
        num_experts=EXPERTS,
        experts_per_token=TOP,
        intermediate_size=INNER,
        shared_intermediate_size=20,
        shared_gate=True,
    ),
)
GPT_OSS = replace(
    QWEN,
    model_type="gpt_oss",
    swiglu_limit=0.8,
    moe=MoeConfig(
        num_experts=EXPERTS,
        experts_per_token=TOP,
        intermediate_size=INNER,
        softmax_after_topk=True,
        bias=True,
    ),
)
CONFIGS = {"qwen": QWEN, "gpt_oss": GPT_OSS}
WAYS = {
    "1": Parallelism(),
    "EP 2": Parallelism(tensor_parallel=2, expert_parallel=2),
    "EP 4": Parallelism(tensor_parallel=4, expert_parallel=4),
    "TP 2": Parallelism(tensor_parallel=2),
    "TP 4": Parallelism(tensor_parallel=4),
}


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def act(gate: np.ndarray, up: np.ndarray, config: ModelConfig) -> np.ndarray:
    if config.swiglu_limit is None:
        return gate * sigmoid(gate) * up
    gate = np.minimum(gate, config.swiglu_limit)
    up = np.clip(up, -config.swiglu_limit, config.swiglu_limit)
    return (up + 1) * gate * sigmoid(1.702 * gate)


def reference(h: np.ndarray, params: dict[str, np.ndarray], config: ModelConfig) -> np.ndarray:
    """Token by token, expert by expert, nothing sorted or grouped."""
    moe = config.moe
    assert moe is not None
    out = np.zeros_like(h)
    for index in np.ndindex(*h.shape[:2]):
        x = h[index] / np.sqrt(np.mean(h[index] ** 2) + config.norm_eps) * params["norm"]
        logits = x @ params["router"].T + params.get("router_bias", 0)
        chosen = np.argsort(-logits)[: moe.experts_per_token]
        scores = np.exp(logits - logits.max())
        weights = scores[chosen] / scores[chosen].sum()  # of a softmax over all, renormalised
        y = np.zeros(HIDDEN)
        for expert, weight in zip(chosen, weights, strict=True):
            gate, up = np.moveaxis(params["experts_gate_up"][expert], 1, 0)
            bias = params.get("experts_gate_up_bias", np.zeros((EXPERTS, 2, INNER)))[expert]
            inner = act(x @ gate + bias[0], x @ up + bias[1], config)
            down = inner @ params["experts_down"][expert]
            y += weight * (down + params.get("experts_down_bias", np.zeros((EXPERTS, 1)))[expert])
        if "shared_gate_up" in params:
            gate, up = params["shared_gate_up"]
            shared = act(x @ gate.T, x @ up.T, config) @ params["shared_down"].T
            y += shared * sigmoid(x @ params["shared_gate"].T)
        out[index] = h[index] + y
    return out


def run(
    h: np.ndarray, params: dict[str, np.ndarray], config: ModelConfig, parallelism: Parallelism
) -> np.ndarray:
    """The operator under ``shard_map``, as a stage of a group runs it."""
    arrays = {name: jnp.asarray(value) for name, value in params.items()}
    return np.asarray(_program(config, parallelism)(arrays, jnp.asarray(h)))


@lru_cache
def _program(
    config: ModelConfig, parallelism: Parallelism
) -> Callable[[Arrays, jax.Array], jax.Array]:
    operator, _ = make_operator(config, "layers.0.ffn")
    ranks = parallelism.tensor_parallel
    specs = {p.name: param_spec(p, parallelism) for p in operator.spec.params}

    def one(params: Arrays, h: jax.Array) -> jax.Array:
        step = replace(
            make_step([0] * h.shape[0], [h.shape[1]] * h.shape[0], h.shape[1], context=64),
            axis=MODEL if ranks > 1 else None,
            ranks=ranks,
            expert_ranks=parallelism.expert_parallel,
        )
        outputs, _ = build_operator(operator.spec, config, params)({"h": h}, {}, step)
        return outputs["x"]

    mesh = Mesh(np.array(jax.devices()[:ranks]), (MODEL,))
    plain = jax.sharding.PartitionSpec()
    return jax.jit(
        jax.shard_map(one, mesh=mesh, in_specs=(specs, plain), out_specs=plain, check_vma=False)
    )


def make_params(config: ModelConfig, routing: str) -> dict[str, np.ndarray]:
    """Weights whose router does what ``routing`` says to any token."""
    _, arrays = make_operator(config, "layers.0.ffn")
    params = {name: np.array(value) for name, value in arrays.items()}
    router = params["router"]
    if routing == "random":
        return params
    # A large norm weight on one input that is always positive decides.
    params["norm"][0] = 8.0
    router[:, 0] = {
        "one set": np.where(np.arange(EXPERTS) < TOP, 5.0, -5.0),  # all tokens to experts 0, 1, 2
        "last rank": np.where(np.arange(EXPERTS) >= EXPERTS - TOP, 5.0, -5.0),
        "two shunned": np.where(np.arange(EXPERTS) % 4 == 1, -50.0, 0.0),  # 1 and 5 have none
        "one dominates": np.where(np.arange(EXPERTS) == 6, 30.0, 0.0),
    }[routing]
    return params


def make_rows(rows: int, tokens: int) -> np.ndarray:
    h = np.random.default_rng(rows).standard_normal((rows, tokens, HIDDEN)).astype(np.float32)
    h[..., 0] = 1.0
    return h


@pytest.mark.parametrize("ways", list(WAYS))
@pytest.mark.parametrize("family", list(CONFIGS))
def test_any_routing_equals_the_reference(family: str, ways: str) -> None:
    """Whatever share of the tokens an expert or a rank gets, and for a single row."""
    config = CONFIGS[family]
    for routing in ("random", "one set", "last rank", "two shunned", "one dominates"):
        params = make_params(config, routing)
        wide = {name: value.astype(np.float64) for name, value in params.items()}
        for rows, tokens in ((1, 1), (5, 3)):
            h = make_rows(rows, tokens)
            out = run(h, params, config, WAYS[ways])
            np.testing.assert_allclose(
                out, reference(h.astype(np.float64), wide, config), atol=1e-4, err_msg=routing
            )


@pytest.mark.parametrize(
    ("routing", "used"),
    [
        ("one set", {0, 1, 2}),
        ("last rank", {5, 6, 7}),
        ("two shunned", {0, 2, 3, 4, 6, 7}),
    ],
)
def test_the_routings_are_what_they_say(routing: str, used: set[int]) -> None:
    params = make_params(QWEN, routing)
    operator = _operator(QWEN, params)
    x = operator.normalize("norm", jnp.asarray(make_rows(40, 1)))
    experts, _ = operator.route(x.reshape(-1, HIDDEN))
    assert set(np.asarray(experts).ravel().tolist()) == used


def _operator(config: ModelConfig, params: dict[str, np.ndarray]) -> MoeFeedForward:
    operator, _ = make_operator(config, "layers.0.ffn")
    arrays = {name: jnp.asarray(value) for name, value in params.items()}
    built = build_operator(operator.spec, config, arrays)
    assert isinstance(built, MoeFeedForward)
    return built


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_router_weights(normalize: bool, after: bool) -> None:
    assert QWEN.moe is not None
    moe = replace(QWEN.moe, normalize_weights=normalize, softmax_after_topk=after)
    config = replace(QWEN, moe=moe)
    params = make_params(config, "random")
    rows = np.random.default_rng(3).standard_normal((6, HIDDEN)).astype(np.float32)
    experts, weights = _operator(config, params).route(jnp.asarray(rows))
    logits = rows @ params["router"].T
    scores = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    order = np.argsort(-logits, axis=1)[:, :TOP]
    np.testing.assert_array_equal(experts, order)
    expected = np.take_along_axis(scores, order, axis=1)
    if normalize or after:
        expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(weights, expected, rtol=1e-5)
    assert weights.dtype == jnp.float32


def test_clamped_activation() -> None:
    gate = jnp.asarray([-9.0, -1.0, 0.5, 7.0, 9.0])
    up = jnp.asarray([-9.0, 9.0, 0.5, -7.0, 1.0])
    config = replace(GPT_OSS, swiglu_limit=7.0)
    expected = act(np.asarray(gate), np.asarray(up), config)
    np.testing.assert_allclose(activate(gate, up, config), expected, rtol=1e-5)
    # Above, both stop at the limit; below, the up projection alone does.
    np.testing.assert_allclose(activate(gate[3:], up[3:], config)[1], 7 * 2, rtol=1e-4)
    np.testing.assert_allclose(
        activate(gate[:1], up[:1], config), -9 * sigmoid(np.full(1, -9 * 1.702)) * -6, rtol=1e-5
    )


def test_gelu_is_the_tanh_form() -> None:
    x = np.linspace(-3, 3, 13, dtype=np.float32)
    config = replace(QWEN, activation="gelu_tanh")
    expected = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(activate(jnp.asarray(x), jnp.ones(13), config), expected, atol=1e-6)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_bfloat16_activation_is_rounded_once(config: ModelConfig) -> None:
    gate, up = jnp.asarray(np.random.default_rng(2).standard_normal((2, 500)), jnp.bfloat16)
    exact = activate(gate.astype(jnp.float32), up.astype(jnp.float32), config)
    np.testing.assert_array_equal(activate(gate, up, config), exact.astype(jnp.bfloat16))


def test_gated_mlp_is_two_projections_and_one_back() -> None:
    random = np.random.default_rng(0)
    x, gate_up = random.standard_normal((2, 3, 4)), random.standard_normal((2, 5, 4))
    down = random.standard_normal((4, 5))
    wide = [jnp.asarray(a, jnp.float32) for a in (x, gate_up, down)]
    ours = gated_mlp(wide[0], wide[1], wide[2], QWEN)
    expected = act(x @ gate_up[0].T, x @ gate_up[1].T, QWEN) @ down.T
    np.testing.assert_allclose(ours, expected, atol=1e-5)


@pytest.mark.parametrize("ways", ["1", "EP 4", "TP 2"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_a_broken_row_breaks_no_other(value: float, ways: str) -> None:
    """Rows of other ranks' experts are masked, not multiplied by zero."""
    params = make_params(GPT_OSS, "random")
    h = make_rows(6, 1)
    clean = run(h, params, GPT_OSS, WAYS[ways])
    h[2, 0, 3] = value
    out = run(h, params, GPT_OSS, WAYS[ways])
    others = [0, 1, 3, 4, 5]
    np.testing.assert_array_equal(out[others], clean[others])
    assert np.isfinite(clean).all()
    if not np.isfinite(value):
        assert not np.isfinite(out[2]).all()


def test_huge_values_of_unused_experts_are_not_seen() -> None:
    """A rank whose experts get no row adds exactly nothing."""
    params = make_params(QWEN, "one set")
    h = make_rows(5, 2)
    clean = run(h, params, QWEN, WAYS["EP 4"])
    for name in ("experts_gate_up", "experts_down"):
        params[name][TOP:] = 3e38
    np.testing.assert_array_equal(run(h, params, QWEN, WAYS["EP 4"]), clean)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ragged_dot_gives_rows_of_no_group_zero(dtype: Any) -> None:
    """What our mask relies on least: it would hold even if these rows were not zero."""
    rows, groups = jnp.ones((7, 4), dtype), jnp.ones((3, 4, 5), dtype)
    out = jax.jit(jax.lax.ragged_dot)(rows, groups, jnp.asarray([2, 0, 3], jnp.int32))
    np.testing.assert_array_equal(np.asarray(out[:5], np.float32), 4.0)
    np.testing.assert_array_equal(np.asarray(out[5:], np.float32), 0.0)
