"""Small stand-ins for large models: same family, layer pattern and quirks, small sizes."""

from __future__ import annotations

import dataclasses

from weavejax.models.config import LayerKind, LinearAttentionConfig, ModelConfig, MoeConfig

_HIDDEN, _HEADS, _HEAD_DIM, _INNER, _EXPERT_INNER, _VOCAB = 64, 8, 16, 96, 32, 320
_WINDOW = 12


def tiny_config(config: ModelConfig) -> ModelConfig:
    """The same architecture with sizes that run anywhere in milliseconds.

    Two periods of the layer pattern, and the truncated one where the original ends in one. Flags,
    RoPE, biases, grouped or multi-query attention and tied embeddings stay; there is no end
    token, which random weights would hit at random.

    Examples:
        >>> from weavejax.models import preset_config
        >>> tiny = tiny_config(preset_config("gemma-3-27b"))
        >>> tiny.num_layers, tiny.num_heads, tiny.num_kv_heads, tiny.sliding_window
        (14, 8, 4, 12)
    """
    kv_heads = 1 if config.num_kv_heads == 1 else _kv_heads(config)
    scale = config.attention_scale
    return dataclasses.replace(
        config,
        name=f"{config.name}-tiny",
        vocab_size=_VOCAB,
        hidden_size=_HIDDEN,
        layer_kinds=_layers(config.layer_kinds),
        num_heads=_HEADS,
        num_kv_heads=kv_heads,
        head_dim=_HEAD_DIM,
        intermediate_size=_INNER,
        # Keeps its ratio to the usual scale, which some models depart from.
        attention_scale=scale and scale * (config.head_dim / _HEAD_DIM) ** 0.5,
        sliding_window=config.sliding_window and _WINDOW,
        moe=config.moe and _moe(config.moe),
        linear=config.linear and _linear(config.linear),
        embed_scale=config.embed_scale and _HIDDEN**0.5,
        bos_token_id=None,
        eos_token_ids=(),
    )


def _layers(kinds: tuple[LayerKind, ...]) -> tuple[LayerKind, ...]:
    period = next(p for p in range(1, len(kinds) + 1) if kinds[p:] == kinds[:-p])
    return kinds[: min(len(kinds), 2 * period + len(kinds) % period)]


def _kv_heads(config: ModelConfig) -> int:
    """The nearest grouping of eight heads, at least two groups."""
    wanted = _HEADS * config.num_kv_heads / config.num_heads
    return min((2, 4, 8), key=lambda count: abs(count - wanted))


def _moe(moe: MoeConfig) -> MoeConfig:
    experts = min(moe.num_experts, 8)
    return dataclasses.replace(
        moe,
        num_experts=experts,
        experts_per_token=min(moe.experts_per_token, experts, 3),
        intermediate_size=_EXPERT_INNER,
        shared_intermediate_size=_EXPERT_INNER if moe.shared_intermediate_size else 0,
    )


def _linear(linear: LinearAttentionConfig) -> LinearAttentionConfig:
    ratio = min(linear.num_value_heads // linear.num_key_heads, 4)
    return dataclasses.replace(
        linear, num_key_heads=8, num_value_heads=8 * ratio, key_head_dim=8, value_head_dim=8
    )
