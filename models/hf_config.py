"""Hugging Face ``config.json`` to :class:`ModelConfig`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from weavejax.models.config import (
    AttentionKind,
    LayerKind,
    LinearAttentionConfig,
    ModelConfig,
    MoeConfig,
    RopeConfig,
)

_KINDS: dict[str, AttentionKind] = {
    "full_attention": "full",
    "sliding_attention": "sliding",
    "linear_attention": "linear",
}


def load_config(path: str | Path, *, name: str | None = None) -> ModelConfig:
    """Read ``config.json`` (a file or the directory that holds it).

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: an unsupported ``model_type`` or a missing field.
    """
    path = Path(path)
    file = path / "config.json" if path.is_dir() else path
    if not file.exists():
        raise FileNotFoundError(f"{file} does not exist: a model directory holds a config.json")
    try:
        data = json.loads(file.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} is not JSON: {error}") from None
    return config_from_hf(data, name=name or file.parent.name)


def supported_model_types() -> tuple[str, ...]:
    """``model_type`` values of text models that :func:`config_from_hf` reads."""
    return tuple(sorted(_READERS))


def config_from_hf(data: Mapping[str, Any], *, name: str) -> ModelConfig:
    """Translate the fields of a Hugging Face config.

    Multimodal configs give their text part.

    Args:
        data: the parsed ``config.json``.
        name: what to call the model.

    Raises:
        ValueError: an unsupported ``model_type`` (the message lists the supported ones), or a
            field that is missing or has a value the operators do not implement.
    """
    model_type = data.get("model_type")
    if model_type not in _READERS and isinstance(data.get("text_config"), Mapping):
        inner = dict(data["text_config"])
        for key in ("tie_word_embeddings", "eos_token_id", "bos_token_id"):
            if key in data:
                inner.setdefault(key, data[key])
        return config_from_hf(inner, name=name)
    if model_type not in _READERS:
        raise ValueError(
            f"model_type {model_type!r} is not supported; supported are "
            f"{', '.join(supported_model_types())}"
        )
    try:
        return ModelConfig(name=name, **_READERS[model_type](_common(data), data))
    except KeyError as error:
        raise ValueError(f"{name}: config.json lacks the field {error}") from None


def _common(data: Mapping[str, Any]) -> dict[str, Any]:
    activation = data.get("hidden_activation") or data.get("hidden_act", "silu")
    known = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
    if activation not in known:
        raise ValueError(f"hidden_act must be one of {sorted(known)}, got {activation!r}")
    eos = data.get("eos_token_id")
    heads = data["num_attention_heads"]
    return dict(
        model_type=data["model_type"],
        vocab_size=data["vocab_size"],
        hidden_size=data["hidden_size"],
        num_heads=heads,
        num_kv_heads=data.get("num_key_value_heads") or heads,
        head_dim=data.get("head_dim") or data["hidden_size"] // heads,
        intermediate_size=data["intermediate_size"],
        max_position=data.get("max_position_embeddings", 2048),
        norm_eps=data.get("rms_norm_eps", 1e-6),
        activation=known[activation],
        tie_embeddings=bool(data.get("tie_word_embeddings", False)),
        bos_token_id=data.get("bos_token_id"),
        eos_token_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
        rope=_rope(data),
        layer_kinds=_layer_kinds(data),
    )


def _layer_kinds(
    data: Mapping[str, Any],
    default: str = "full_attention",
    moe: Callable[[int], bool] = lambda layer: False,
) -> tuple[LayerKind, ...]:
    types = data.get("layer_types") or [default] * data["num_hidden_layers"]
    if len(types) != data["num_hidden_layers"]:
        raise ValueError(
            f"layer_types must have one entry per layer ({data['num_hidden_layers']}), "
            f"got {len(types)}"
        )
    unknown = sorted(set(types) - set(_KINDS))
    if unknown:
        raise ValueError(f"layer_types must be among {sorted(_KINDS)}, got {unknown}")
    return tuple(
        LayerKind(attention=_KINDS[kind], ffn="moe" if moe(layer) else "dense")
        for layer, kind in enumerate(types)
    )


def _rope(data: Mapping[str, Any], kind: str | None = None) -> RopeConfig:
    """RoPE in either form: flat fields, or ``rope_parameters`` (nested by layer type)."""
    parameters = data.get("rope_parameters") or {}
    if kind is not None and kind in parameters:
        parameters = parameters[kind]
    elif "full_attention" in parameters:
        parameters = parameters["full_attention"]
    scaling = parameters or data.get("rope_scaling") or {}
    rope_type = scaling.get("rope_type") or scaling.get("type") or "default"
    known = {"default": "none", "linear": "linear", "llama3": "llama3", "yarn": "yarn"}
    if rope_type not in known:
        raise ValueError(f"rope_type must be one of {sorted(known)}, got {rope_type!r}")
    _refuse_mscale(scaling)
    fraction = parameters.get("partial_rotary_factor", data.get("partial_rotary_factor", 1.0))
    return RopeConfig(
        theta=float(parameters.get("rope_theta", data.get("rope_theta", 10_000.0))),
        rotary_fraction=float(fraction),
        scaling=cast(Any, known[rope_type]),
        factor=float(scaling.get("factor") or 1.0),
        original_max_position=int(
            scaling.get("original_max_position_embeddings")
            or (data.get("max_position_embeddings", 0) if known[rope_type] == "yarn" else 0)
        ),
        low_freq_factor=float(scaling.get("low_freq_factor") or 1.0),
        high_freq_factor=float(scaling.get("high_freq_factor") or 4.0),
        beta_fast=float(scaling.get("beta_fast") or 32.0),
        beta_slow=float(scaling.get("beta_slow") or 1.0),
        attention_factor=scaling.get("attention_factor"),
        truncate=bool(scaling.get("truncate", True)),
    )


def _refuse_mscale(scaling: Mapping[str, Any]) -> None:
    """DeepSeek's way to give YaRN's attention factor."""
    given = {key: scaling[key] for key in ("mscale", "mscale_all_dim") if scaling.get(key)}
    if given and scaling.get("attention_factor") is None:
        raise ValueError(f"only attention_factor is implemented in rope scaling, got {given}")


def _refuse(data: Mapping[str, Any], **expected: Any) -> None:
    for field, value in expected.items():
        if data.get(field, value) not in (value, None):
            raise ValueError(
                f"{data['model_type']}: only {field}={value!r} is implemented, got {data[field]!r}"
            )


def _llama(common: dict[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    _refuse(data, mlp_bias=False)
    bias = bool(data.get("attention_bias", False))
    return common | dict(qkv_bias=bias, output_bias=bias)


def _qwen3(common: dict[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    bias = bool(data.get("attention_bias", False))
    sliding = data.get("sliding_window") if data.get("use_sliding_window") else None
    return common | dict(qk_norm=True, qkv_bias=bias, output_bias=bias, sliding_window=sliding)


def _moe(data: Mapping[str, Any], **rest: Any) -> MoeConfig:
    return MoeConfig(
        num_experts=data.get("num_experts") or data["num_local_experts"],
        experts_per_token=data["num_experts_per_tok"],
        intermediate_size=data["moe_intermediate_size"],
        normalize_weights=bool(data.get("norm_topk_prob", False)),
        **rest,
    )


def _is_sparse(data: Mapping[str, Any]) -> Callable[[int], bool]:
    dense, step = set(data.get("mlp_only_layers") or ()), data.get("decoder_sparse_step", 1)
    return lambda layer: layer not in dense and (layer + 1) % step == 0


def _qwen3_moe(common: dict[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    return _qwen3(common, data) | dict(
        moe=_moe(data), layer_kinds=_layer_kinds(data, moe=_is_sparse(data))
    )


def _qwen3_next(common: dict[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    _refuse(data, attention_bias=False)
    shared = data.get("shared_expert_intermediate_size", 0)
    interval = data.get("full_attention_interval", 4)
    types = data.get("layer_types") or [
        "linear_attention" if (layer + 1) % interval else "full_attention"
        for layer in range(data["num_hidden_layers"])
    ]
    return common | dict(
        qk_norm=True,
        attention_gate=True,
        norm_weight_offset=1.0,
        rope=_rope({"partial_rotary_factor": 0.25, **data}),
        layer_kinds=_layer_kinds({**data, "layer_types": types}, moe=_is_sparse(data)),
        moe=_moe(data, shared_intermediate_size=shared, shared_gate=shared > 0),
        linear=LinearAttentionConfig(
            num_key_heads=data["linear_num_key_heads"],
            num_value_heads=data["linear_num_value_heads"],
            key_head_dim=data["linear_key_head_dim"],
            value_head_dim=data["linear_value_head_dim"],
            conv_kernel=data["linear_conv_kernel_dim"],
        ),
    )


def _gemma3(common: dict[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    _refuse(data, attention_bias=False, use_bidirectional_attention=False)
    pattern = data.get("sliding_window_pattern", 6)
    types = data.get("layer_types") or [
        "sliding_attention" if (layer + 1) % pattern else "full_attention"
        for layer in range(data["num_hidden_layers"])
    ]
    local_theta = float(data.get("rope_local_base_freq", 10_000.0))
    has_both = "sliding_attention" in (data.get("rope_parameters") or {})
    local = _rope(data, "sliding_attention") if has_both else RopeConfig(theta=local_theta)
    return common | dict(
        qk_norm=True,
        post_norms=True,
        norm_weight_offset=1.0,
        embed_scale=math.sqrt(common["hidden_size"]),
        attention_scale=float(data.get("query_pre_attn_scalar", 256)) ** -0.5,
        attention_softcap=data.get("attn_logit_softcapping"),
        logit_softcap=data.get("final_logit_softcapping"),
        sliding_window=data["sliding_window"],
        rope_sliding=local,
        layer_kinds=_layer_kinds({**data, "layer_types": types}),
        tie_embeddings=bool(data.get("tie_word_embeddings", True)),
    )


def _gpt_oss(common: dict[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    _refuse(data, swiglu_alpha=1.702)
    experts = data.get("num_local_experts") or data["num_experts"]
    types = data.get("layer_types") or [
        "full_attention" if layer % 2 else "sliding_attention"
        for layer in range(data["num_hidden_layers"])
    ]
    bias = bool(data.get("attention_bias", True))
    return common | dict(
        qkv_bias=bias,
        output_bias=bias,
        attention_sinks=True,
        sliding_window=data["sliding_window"],
        swiglu_limit=float(data.get("swiglu_limit", 7.0)),
        layer_kinds=_layer_kinds({**data, "layer_types": types}, moe=lambda layer: True),
        moe=MoeConfig(
            num_experts=experts,
            experts_per_token=data.get("num_experts_per_tok") or data["experts_per_token"],
            intermediate_size=data["intermediate_size"],
            softmax_after_topk=True,
            bias=True,
        ),
    )


_READERS: dict[str, Callable[[dict[str, Any], Mapping[str, Any]], dict[str, Any]]] = {
    "llama": _llama,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "qwen3_next": _qwen3_next,
    "gemma3_text": _gemma3,
    "gpt_oss": _gpt_oss,
}
