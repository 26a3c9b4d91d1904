"""Tiny random Hugging Face checkpoints of every supported family, written by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

_COMMON: dict[str, Any] = dict(
    vocab_size=320,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=512,
    pad_token_id=None,
    bos_token_id=1,
    eos_token_id=2,
    tie_word_embeddings=False,
)
_MOE: dict[str, Any] = dict(
    num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32, norm_topk_prob=True
)
_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (
        "Llama",
        dict(
            rope_parameters=dict(
                rope_type="llama3",
                rope_theta=10_000.0,
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=64,
            )
        ),
    ),
    "qwen3": ("Qwen3", dict(rope_parameters=dict(rope_type="default", rope_theta=1e6))),
    "gemma3_text": (
        "Gemma3",
        dict(
            num_hidden_layers=8,  # one block of six and a truncated one
            layer_types=(
                ["sliding_attention"] * 5 + ["full_attention"] + ["sliding_attention"] * 2
            ),
            sliding_window=8,
            query_pre_attn_scalar=24,
            tie_word_embeddings=True,
            rope_parameters=dict(
                full_attention=dict(rope_type="linear", rope_theta=1e6, factor=8.0),
                sliding_attention=dict(rope_type="default", rope_theta=10_000.0),
            ),
        ),
    ),
    "qwen3_moe": (
        "Qwen3Moe",
        _MOE | dict(rope_parameters=dict(rope_type="default", rope_theta=1e6)),
    ),
    "qwen3_next": (
        "Qwen3Next",
        _MOE
        | dict(
            num_hidden_layers=4,
            layer_types=["linear_attention"] * 3 + ["full_attention"],
            shared_expert_intermediate_size=48,
            linear_num_key_heads=4,
            linear_num_value_heads=8,
            linear_key_head_dim=16,
            linear_value_head_dim=8,
            linear_conv_kernel_dim=4,
            rope_parameters=dict(rope_type="default", rope_theta=1e6, partial_rotary_factor=0.25),
        ),
    ),
    "gpt_oss": (
        "GptOss",
        dict(
            num_hidden_layers=4,
            num_local_experts=8,
            num_experts_per_tok=3,
            intermediate_size=32,
            sliding_window=8,
            rope_parameters=dict(
                rope_type="yarn",
                rope_theta=150_000.0,
                factor=32.0,
                beta_fast=32.0,
                beta_slow=1.0,
                truncate=False,
                original_max_position_embeddings=64,
            ),
        ),
    ),
}
FAMILIES = tuple(_FAMILIES)


def hf_model(family: str, *, seed: int = 0, **overrides: Any) -> Any:
    """A tiny random float32 model of ``family``: every weight random, norms and biases too."""
    prefix, fields = _FAMILIES[family]
    config_class = getattr(transformers, f"{prefix}TextConfig", None) or getattr(
        transformers, f"{prefix}Config"
    )
    config = config_class(**{**_COMMON, **fields, **overrides})
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{prefix}ForCausalLM")(config).float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 1:  # norms, biases, sinks, decays: around what the family starts at
                weight.add_(0.2 * noise)
            else:
                weight.copy_(noise * weight.shape[-1] ** -0.5)
    return model


def write_hf_checkpoint(
    family: str, directory: Path, *, seed: int = 0, max_shard_size: str = "5GB", **overrides: Any
) -> Any:
    """Write a tiny random checkpoint into ``directory`` and return the transformers model."""
    model = hf_model(family, seed=seed, **overrides)
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    return model
