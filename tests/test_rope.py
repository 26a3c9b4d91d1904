"""Rotary embeddings against transformers, for every scaling a config may ask for."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from transformers.models.llama import modeling_llama
from transformers.models.qwen3_next import modeling_qwen3_next

from weavejax.models import RopeConfig, config_from_hf
from weavejax.models.rope import apply_rope, rope_frequencies

PARAMETERS: dict[str, dict[str, Any]] = {
    "default": dict(rope_type="default", rope_theta=10_000.0),
    "linear": dict(rope_type="linear", rope_theta=1e6, factor=8.0),
    "llama3": dict(
        rope_type="llama3",
        rope_theta=500_000.0,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    ),
    "yarn": dict(
        rope_type="yarn",
        rope_theta=150_000.0,
        factor=32.0,
        beta_fast=32.0,
        beta_slow=1.0,
        truncate=False,
        original_max_position_embeddings=4096,
    ),
    "yarn truncated": dict(
        rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=2048
    ),
    "yarn with its own attention factor": dict(
        rope_type="yarn",
        rope_theta=1e4,
        factor=4.0,
        attention_factor=1.5,
        original_max_position_embeddings=2048,
    ),
    "yarn that shrinks nothing": dict(
        rope_type="yarn", rope_theta=1e4, factor=1.0, original_max_position_embeddings=8192
    ),
}


def _theirs(parameters: dict[str, Any]) -> tuple[Any, RopeConfig]:
    """transformers' embedding and our reading of the same config."""
    config = transformers.LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        head_dim=64,
        max_position_embeddings=8192,
        rope_parameters=parameters,
    )
    ours = config_from_hf(config.to_dict(), name="llama").rope
    return modeling_llama.LlamaRotaryEmbedding(config), ours


@pytest.mark.parametrize("name", list(PARAMETERS))
def test_frequencies(name: str) -> None:
    theirs, ours = _theirs(PARAMETERS[name])
    frequencies, factor = rope_frequencies(ours, 64)
    np.testing.assert_allclose(frequencies, theirs.inv_freq.numpy(), rtol=2e-6)
    assert factor == pytest.approx(theirs.attention_scaling, rel=1e-9)


def test_truncation_and_scaling_change_the_frequencies() -> None:
    """Otherwise the comparison above would not see them."""
    every = [rope_frequencies(_theirs(p)[1], 64)[0] for p in PARAMETERS.values()]
    whole = dict(PARAMETERS["yarn truncated"], truncate=False)
    every.append(rope_frequencies(_theirs(whole)[1], 64)[0])
    different = {tuple(frequencies.tolist()) for frequencies in every}
    assert len(different) == len(every) - 2  # an attention factor changes none, factor 1 neither


@pytest.mark.parametrize("name", list(PARAMETERS))
def test_rotation(name: str) -> None:
    """Positions near and far; float32 angles as transformers has them."""
    theirs, ours = _theirs(PARAMETERS[name])
    x = np.random.default_rng(0).standard_normal((2, 5, 3, 64), np.float32)
    positions = np.array([[0, 1, 2, 3, 4], [7, 100, 4095, 8191, 20_000]], np.int32)
    cos, sin = theirs(torch.zeros(1), torch.from_numpy(positions).long())
    heads = torch.from_numpy(x).transpose(1, 2)
    expected, _ = modeling_llama.apply_rotary_pos_emb(heads, heads, cos, sin)
    rotated = apply_rope(jnp.asarray(x), jnp.asarray(positions), ours)
    # Far positions times a frequency differ in the last bit of the angle.
    np.testing.assert_allclose(rotated, expected.transpose(1, 2).numpy(), atol=5e-3)
    np.testing.assert_allclose(rotated[0], expected.transpose(1, 2).numpy()[0], atol=2e-6)
    assert np.abs(np.asarray(rotated) - x).max() > 0.5


@pytest.mark.parametrize("fraction", [0.25, 0.5])
def test_partial_rotation(fraction: float) -> None:
    config = transformers.Qwen3NextConfig(
        hidden_size=64,
        num_attention_heads=4,
        head_dim=32,
        rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=fraction),
    )
    ours = config_from_hf(config.to_dict(), name="next").rope
    assert ours.rotary_fraction == fraction
    x = np.random.default_rng(0).standard_normal((1, 9, 2, 32), np.float32)
    positions = np.arange(9, dtype=np.int32)[None]
    embedding = modeling_qwen3_next.Qwen3NextRotaryEmbedding(config)
    cos, sin = embedding(torch.zeros(1), torch.from_numpy(positions).long())
    heads = torch.from_numpy(x).transpose(1, 2)
    expected, _ = modeling_qwen3_next.apply_rotary_pos_emb(heads, heads, cos, sin)
    rotated = np.asarray(apply_rope(jnp.asarray(x), jnp.asarray(positions), ours))
    np.testing.assert_allclose(rotated, expected.transpose(1, 2).numpy(), atol=2e-6)
    np.testing.assert_array_equal(rotated[..., int(32 * fraction) :], x[..., int(32 * fraction) :])


def test_scores_depend_on_distance_alone() -> None:
    random = np.random.default_rng(0)
    q, k = (jnp.asarray(random.standard_normal((1, 1, 1, 64), np.float32)) for _ in range(2))
    rope = RopeConfig(theta=1e4)

    def score(at: int, behind: int) -> float:
        places = (jnp.full((1, 1), at, jnp.int32), jnp.full((1, 1), at - behind, jnp.int32))
        return float(jnp.sum(apply_rope(q, places[0], rope) * apply_rope(k, places[1], rope)))

    assert score(500, 3) == pytest.approx(score(3, 3), abs=1e-3)
    assert abs(score(500, 3) - score(500, 30)) > 0.1


def test_dtype_is_kept() -> None:
    x = jnp.ones((1, 1, 1, 8), jnp.bfloat16)
    assert apply_rope(x, jnp.ones((1, 1), jnp.int32), RopeConfig()).dtype == jnp.bfloat16


def test_what_is_not_implemented_is_refused() -> None:
    common = transformers.LlamaConfig(num_hidden_layers=1).to_dict()
    scaling = dict(rope_type="yarn", rope_theta=1e4, factor=4.0, mscale=1.0, mscale_all_dim=0.8)
    with pytest.raises(ValueError, match="only attention_factor is implemented in rope scaling, g"):
        config_from_hf(common | dict(rope_parameters=scaling), name="m")
    scaling = dict(rope_type="longrope", rope_theta=1e4)
    with pytest.raises(ValueError, match="rope_type must be one of .*, got 'longrope'"):
        config_from_hf(common | dict(rope_parameters=scaling), name="m")
    common = transformers.GptOssConfig(num_hidden_layers=1, swiglu_alpha=1.5).to_dict()
    with pytest.raises(ValueError, match="only swiglu_alpha=1.702 is implemented, got 1.5"):
        config_from_hf(common, name="m")
