"""Every numeric detail matters: changed, the comparison with transformers notices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hf_tiny
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from layer_parity import differences, run_operators
from mutation import change_source
from parity_cases import LOGITS_TOLERANCE, TOLERANCE, Case, faint_keys_case, parity_case

from weavejax.models import delta_net, feed_forward, norms, rope
from weavejax.models.attention import AttentionCore, AttentionIn, AttentionOut
from weavejax.models.build import build_operator
from weavejax.models.config import ModelConfig
from weavejax.models.embedding import Embed
from weavejax.models.loading import load_model
from weavejax.models.operator import Operator
from weavejax.models.sequence import operator_sequence
from weavejax.models.step import Step

Change = Callable[[ModelConfig], ModelConfig]


def _set(**fields: Any) -> Change:
    return lambda config: replace(config, **fields)


def _part(part: str, **fields: Any) -> Change:
    """Fields of one part of the config: ``moe``, ``rope`` ..."""
    return lambda config: replace(config, **{part: replace(getattr(config, part), **fields)})


def _kinds(**fields: Any) -> Change:
    """A property of all layers."""
    return lambda config: replace(
        config, layer_kinds=tuple(replace(kind, **fields) for kind in config.layer_kinds)
    )


CONFIG_CHANGES: dict[str, dict[str, Change]] = {
    "llama": {
        "norm epsilon": _set(norm_eps=0.021),
        "qkv bias": _set(qkv_bias=False),
        "output bias": _set(output_bias=False),
        "attention scale": _set(attention_scale=0.26),
        "activation": _set(activation="gelu_tanh"),
        "rope theta": _part("rope", theta=10_010.0),
        "rope factor": _part("rope", factor=8.1),
        "rope low frequency": _part("rope", low_freq_factor=1.1),
        "rope high frequency": _part("rope", high_freq_factor=4.1),
        "rope original positions": _part("rope", original_max_position=63),
        "rope scaling": _part("rope", scaling="none"),
    },
    "qwen3": {
        "norm epsilon": _set(norm_eps=0.021),
        "QK-norm": _set(qk_norm=False),
        "norm offset": _set(norm_weight_offset=1.0),
        "window": _set(sliding_window=9),
        "full for sliding": _kinds(attention="full"),
        "rope theta": _part("rope", theta=0.99e6),
    },
    "gemma3_text": {
        "norm epsilon": _set(norm_eps=0.021),
        "norm offset": _set(norm_weight_offset=0.0),
        "attention scale": _set(attention_scale=None),
        "attention cap": _set(attention_softcap=50.0),
        "embedding scale": _set(embed_scale=8.01),
        "no embedding scale": _set(embed_scale=None),
        "logit cap": _set(logit_softcap=1.51),
        "no logit cap": _set(logit_softcap=None),
        "activation": _set(activation="silu"),
        "window": _set(sliding_window=7),
        "rope of sliding layers": _set(rope_sliding=None),
        "rope theta of sliding layers": _part("rope_sliding", theta=9_990.0),
        "rope factor": _part("rope", factor=1.0),
        "rope theta": _part("rope", theta=0.99e6),
    },
    "qwen3_moe": {
        "renormalised router": _part("moe", normalize_weights=True),
        "softmax over the chosen": _part("moe", softmax_after_topk=True),
        "experts per token": _part("moe", experts_per_token=2),
        "QK-norm": _set(qk_norm=False),
    },
    "qwen3_next": {
        "norm epsilon": _set(norm_eps=0.021),
        "norm offset": _set(norm_weight_offset=0.0),
        "router not renormalised": _part("moe", normalize_weights=False),
        "shared expert's gate": _part("moe", shared_gate=False),
        "shared expert": _part("moe", shared_intermediate_size=0, shared_gate=False),
        "rotated fraction": _part("rope", rotary_fraction=0.5),
        "rope theta": _part("rope", theta=0.9e6),
    },
    "gpt_oss": {
        "norm epsilon": _set(norm_eps=0.021),
        "sinks": _set(attention_sinks=False),
        "window": _set(sliding_window=9),
        "full for sliding": _kinds(attention="full"),
        "clamp": _set(swiglu_limit=1.01),
        "no clamp": _set(swiglu_limit=None),
        "expert biases": _part("moe", bias=False),
        "softmax over all": _part("moe", softmax_after_topk=False, normalize_weights=False),
        "rope factor": _part("rope", factor=31.0),
        "rope beta fast": _part("rope", beta_fast=5.0),
        "rope beta slow": _part("rope", beta_slow=1.1),
        "rope truncation": _part("rope", truncate=True),
        "rope attention factor": _part("rope", attention_factor=1.0),
        "rope original positions": _part("rope", original_max_position=66),
    },
}

# (family, function, text, other text)
CODE_CHANGES: dict[str, tuple[str, Callable[..., Any], str, str]] = {
    "norm epsilon after the root": (
        "llama",
        norms.rms_norm,
        "jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)",
        "1.0 / (jnp.sqrt(jnp.mean(wide * wide, axis=-1, keepdims=True)) + eps)",
    ),
    "rope pairs are neighbours": (
        "llama",
        rope.apply_rope,
        "wide[..., : 2 * half].reshape(*x.shape[:-1], 2, half)",
        "wide[..., : 2 * half].reshape(*x.shape[:-1], half, 2).swapaxes(-1, -2)",
    ),
    "rope turns the other way": (
        "llama",
        rope.apply_rope,
        "[[-1.0], [1.0]]",
        "[[1.0], [-1.0]]",
    ),
    "norm of queries and keys after rope": (
        "qwen3",
        AttentionIn.__call__,
        '"q": apply_rope(q, step.positions, rope)',
        '"q": self.normalize("q_norm", apply_rope(y[..., :queries, :].reshape(heads), '
        "step.positions, rope))",
    ),
    "post-norm after the residual": (
        "gemma3_text",
        Operator.residual,
        'y = self.normalize("post_norm", y)',
        'return self.normalize("post_norm", x + y)',
    ),
    "exact GELU": (
        "gemma3_text",
        feed_forward.activate,
        "approximate=True",
        "approximate=False",
    ),
    "attention gate without sigmoid": (
        "qwen3_next",
        AttentionOut.__call__,
        'jax.nn.sigmoid(tensors["gate"])',
        'tensors["gate"]',
    ),
    "gate before the gated norm": (
        "qwen3_next",
        delta_net.DeltaNetOut.__call__,
        "rms_norm(attn.reshape(heads), scale, self.config.norm_eps)",
        "rms_norm(attn.reshape(heads) * jax.nn.silu(z.reshape(heads)), scale, "
        "self.config.norm_eps)",
    ),
    "offset of the gated norm": (
        "qwen3_next",
        delta_net.DeltaNetOut.__call__,
        "scale, self.config.norm_eps)",
        "scale, self.config.norm_eps, 1.0)",
    ),
    "epsilon of the gated norm": (
        "qwen3_next",
        delta_net.DeltaNetOut.__call__,
        "scale, self.config.norm_eps)",
        "scale, 1e-6)",
    ),
    "query scale": ("qwen3_next", delta_net.DeltaNetCore.__call__, "dk**-0.5", "dk**-0.49"),
    "queries unnormalised": ("qwen3_next", delta_net.DeltaNetCore.__call__, "l2_norm(q)", "q"),
    "keys unnormalised": ("qwen3_next", delta_net.DeltaNetCore.__call__, "l2_norm(k)", "k"),
    "decay without softplus": (
        "qwen3_next",
        delta_net.DeltaNetCore.__call__,
        "jax.nn.softplus(",
        "jnp.exp(",
    ),
    "beta without sigmoid": (
        "qwen3_next",
        delta_net.DeltaNetCore.__call__,
        "jax.nn.sigmoid(ba[..., :ratio])",
        "ba[..., :ratio]",
    ),
    "convolution the other way": (
        "qwen3_next",
        delta_net._convolve,
        "taps[..., i, None]",
        "taps[..., kernel - 1 - i, None]",
    ),
    "convolution without SiLU": (
        "qwen3_next",
        delta_net._convolve,
        "jax.nn.silu(jnp.asarray(out))",
        "jnp.asarray(out)",
    ),
    "delta against the undecayed state": (
        "qwen3_next",
        delta_net.delta_rule,
        "k, faded)",
        "k, carry)",
    ),
    "clamped gate from below": (
        "gpt_oss",
        feed_forward.activate,
        "jnp.minimum(gate, config.swiglu_limit)",
        "jnp.clip(gate, -config.swiglu_limit, config.swiglu_limit)",
    ),
    "up clamped from above only": (
        "gpt_oss",
        feed_forward.activate,
        "jnp.clip(up, -config.swiglu_limit, config.swiglu_limit)",
        "jnp.minimum(up, config.swiglu_limit)",
    ),
    "sharpness of the sigmoid": ("gpt_oss", feed_forward.activate, "1.702", "1.69"),
    "up shifted by one": ("gpt_oss", feed_forward.activate, "(up + 1)", "up"),
    "router bias": (
        "gpt_oss",
        feed_forward.MoeFeedForward.route,
        'logits + self.weight("router_bias").astype(jnp.float32)',
        "logits",
    ),
    "sinks that hold a zero logit": (
        "gpt_oss",
        AttentionCore.__call__,
        'self.weight("sinks") if',
        'jnp.zeros_like(self.weight("sinks")) if',
    ),
}


def _broken(case: Case, config: ModelConfig | None = None) -> bool:
    """Whether the comparison of test_parity fails."""
    model = case.model if config is None else dataclasses.replace(case.model, config=config)
    worst = differences(run_operators(model, case.tokens), case.expected)
    head = worst.pop("head")
    return head > LOGITS_TOLERANCE or max(worst.values()) > TOLERANCE


@pytest.mark.parametrize(
    ("family", "name"),
    [(family, name) for family in CONFIG_CHANGES for name in CONFIG_CHANGES[family]],
)
def test_a_changed_field_shows(family: str, name: str) -> None:
    case = parity_case(family)
    changed = CONFIG_CHANGES[family][name](case.model.config)
    assert changed != case.model.config
    assert _broken(case, changed)


@pytest.mark.parametrize("name", list(CODE_CHANGES))
def test_changed_arithmetic_shows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family, function, old, new = CODE_CHANGES[name]
    change_source(monkeypatch, function, old, new)
    assert _broken(parity_case(family))


def test_epsilon_of_the_unit_length_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    case = faint_keys_case()
    assert not _broken(case)
    change_source(monkeypatch, norms.l2_norm, "eps: float = 1e-6", "eps: float = 1.1e-6")
    assert _broken(case)


def test_embedding_scale_is_rounded_in_the_weights_dtype(tmp_path_factory: Any) -> None:
    """Gemma multiplies by sqrt(hidden) in bfloat16: 8.5 for a hidden size of 72."""
    path = tmp_path_factory.mktemp("gemma")
    theirs = hf_tiny.write_hf_checkpoint("gemma3_text", path, hidden_size=72).bfloat16()
    tokens = np.arange(3, 300)[None]
    with torch.no_grad():
        expected = theirs.model.embed_tokens(torch.tensor(tokens)).float().numpy()
    model = load_model(path)
    op = operator_sequence(model.config)[0]
    weights = {k: jnp.asarray(v) for k, v in model.operator_params(op, dtype="bfloat16").items()}
    embed = build_operator(op, model.config, weights)
    assert isinstance(embed, Embed)
    step = Step(
        positions=jnp.zeros((1, 297), jnp.int32),
        active=jnp.ones((1, 297), bool),
        slots=None,
        prefix=1,
    )
    outputs, _ = embed({"ids": jnp.asarray(tokens, jnp.int32)}, {}, step)
    ours = np.asarray(outputs["x"], np.float32)
    np.testing.assert_array_equal(ours, expected)
    exact = np.asarray(weights["embedding"], np.float32)[tokens] * 72**0.5
    assert not np.array_equal(exact.astype("bfloat16").astype(np.float32), expected)
