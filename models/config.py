"""What a model is: frozen numbers, no weights and no JAX.

A :class:`ModelConfig` is the one description that weights, memory, traffic and cost are derived
from. It comes from a preset (:mod:`weavejax.models.presets`) or from a Hugging Face
``config.json`` (:mod:`weavejax.models.hf_config`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

AttentionKind = Literal["full", "sliding", "linear"]
FfnKind = Literal["dense", "moe"]


@dataclass(frozen=True, kw_only=True, order=True)
class LayerKind:
    """The two properties by which layers of one model differ."""

    attention: AttentionKind
    ffn: FfnKind = "dense"

    def __str__(self) -> str:
        return f"{self.attention}/{self.ffn}"


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding of one attention kind."""

    theta: float = 10_000.0
    rotary_fraction: float = 1.0
    """Leading part of the head dimension that is rotated."""
    scaling: Literal["none", "linear", "llama3", "yarn"] = "none"
    factor: float = 1.0
    original_max_position: int = 0
    """Positions of pre-training (``llama3`` and ``yarn``)."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    """YaRN's multiplier of sine and cosine; ``None`` is 0.1 ln(factor) + 1."""
    truncate: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.theta < math.inf:
            raise ValueError(f"rope theta must be a finite number > 0, got {self.theta}")


@dataclass(frozen=True, kw_only=True)
class MoeConfig:
    """Mixture-of-experts feed-forward of the ``moe`` layers."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    shared_intermediate_size: int = 0
    """Hidden width of the always-on expert; 0 for none."""
    shared_gate: bool = False
    """The shared expert is multiplied by a sigmoid gate."""
    normalize_weights: bool = True
    """The chosen experts' softmax weights are renormalised to one."""
    softmax_after_topk: bool = False
    """GPT-OSS: softmax over the chosen logits instead of over all."""
    bias: bool = False
    """Biases on the router and on every expert projection."""

    def __post_init__(self) -> None:
        if not 1 <= self.experts_per_token <= self.num_experts:
            raise ValueError(
                f"experts_per_token must be between 1 and num_experts={self.num_experts}, "
                f"got {self.experts_per_token}"
            )


@dataclass(frozen=True, kw_only=True)
class LinearAttentionConfig:
    """Gated delta net: short convolution and a recurrent state per value head."""

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int = 4

    def __post_init__(self) -> None:
        if self.num_value_heads % self.num_key_heads:
            raise ValueError(
                f"num_value_heads must be a multiple of num_key_heads={self.num_key_heads}, "
                f"got {self.num_value_heads}"
            )

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution: queries, keys and values side by side."""
        keys = self.num_key_heads * self.key_head_dim
        return 2 * keys + self.num_value_heads * self.value_head_dim


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only language model as a sequence of layers.

    Examples:
        >>> from weavejax.models import preset_config
        >>> preset_config("smollm2-135m-instruct").num_layers
        30
    """

    name: str
    model_type: str
    """``model_type`` of the Hugging Face config: llama, qwen3, gemma3_text, ..."""
    vocab_size: int
    hidden_size: int
    layer_kinds: tuple[LayerKind, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    """Hidden width of the ``dense`` feed-forward."""
    max_position: int
    norm_eps: float = 1e-6
    norm_weight_offset: float = 0.0
    """RMSNorm multiplies by ``weight + offset``: 1 for zero-centred norms."""
    post_norms: bool = False
    """Gemma: a norm after attention and after the feed-forward as well."""
    qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    """Bias on the attention's output projection."""
    attention_scale: float | None = None
    """Multiplier of the attention scores; ``None`` is head_dim ** -0.5."""
    attention_gate: bool = False
    """Qwen3-Next: the attention output is multiplied by a sigmoid gate."""
    attention_sinks: bool = False
    """GPT-OSS: a learned logit per head joins the softmax."""
    attention_softcap: float | None = None
    sliding_window: int | None = None
    rope: RopeConfig = RopeConfig()
    rope_sliding: RopeConfig | None = None
    """RoPE of ``sliding`` layers where it differs (Gemma 3)."""
    activation: Literal["silu", "gelu_tanh"] = "silu"
    swiglu_limit: float | None = None
    """GPT-OSS: clamp of the gate and up projections."""
    moe: MoeConfig | None = None
    linear: LinearAttentionConfig | None = None
    tie_embeddings: bool = False
    embed_scale: float | None = None
    """Multiplier of the embeddings (Gemma: sqrt(hidden_size), rounded in the weights' dtype)."""
    logit_softcap: float | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.layer_kinds:
            raise ValueError(f"{self.name}: a model needs at least one layer, got layer_kinds=()")
        for field in ("vocab_size", "hidden_size", "num_heads", "num_kv_heads", "head_dim"):
            if getattr(self, field) < 1:
                raise ValueError(f"{self.name}: {field} must be >= 1, got {getattr(self, field)}")
        if not 0 <= self.norm_eps < math.inf:
            raise ValueError(
                f"{self.name}: norm_eps must be a finite number >= 0, got {self.norm_eps}"
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.name}: num_heads must be a multiple of num_kv_heads={self.num_kv_heads}, "
                f"got {self.num_heads}"
            )
        kinds = {kind.attention for kind in self.layer_kinds}
        if "sliding" in kinds and not self.sliding_window:
            raise ValueError(f"{self.name}: sliding layers need sliding_window, got None")
        if "linear" in kinds and self.linear is None:
            raise ValueError(f"{self.name}: linear layers need a LinearAttentionConfig, got None")
        if any(kind.ffn == "moe" for kind in self.layer_kinds) and self.moe is None:
            raise ValueError(f"{self.name}: moe layers need a MoeConfig, got None")

    @property
    def num_layers(self) -> int:
        return len(self.layer_kinds)

    @property
    def scale(self) -> float:
        """Multiplier of the attention scores."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    def rope_of(self, attention: AttentionKind) -> RopeConfig:
        if attention == "sliding" and self.rope_sliding is not None:
            return self.rope_sliding
        return self.rope

    def to_dict(self) -> dict[str, Any]:
        """Plain data with defaults left out; :meth:`from_dict` reads it back unchanged."""
        data = _sparse(self)
        kinds = [str(kind) for kind in self.layer_kinds]
        runs: list[list[Any]] = []
        for kind in kinds:
            if runs and runs[-1][0] == kind:
                runs[-1][1] += 1
            else:
                runs.append([kind, 1])
        data["layer_kinds"] = [f"{kind} x{count}" for kind, count in runs]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelConfig:
        """Read what :meth:`to_dict` wrote.

        Raises:
            ValueError: an unknown field or a layer kind that does not exist.
        """
        values = dict(data)
        kinds: list[LayerKind] = []
        for run in values.get("layer_kinds", ()):
            kind, _, count = str(run).partition(" x")
            attention, _, ffn = kind.partition("/")
            if attention not in typing.get_args(AttentionKind) or ffn not in typing.get_args(
                FfnKind
            ):
                raise ValueError(
                    "a layer kind is (full|sliding|linear)/(dense|moe) with an optional ' xN', "
                    f"got {run!r}"
                )
            kinds += [LayerKind(attention=attention, ffn=ffn)] * int(count or 1)  # type: ignore[arg-type]
        values["layer_kinds"] = tuple(kinds)
        return _from_plain(cls, values)

    @property
    def digest(self) -> str:
        """Short hash of all but name and special tokens: equal for equal architectures."""
        data = self.to_dict()
        for field in ("name", "bos_token_id", "eos_token_ids"):
            data.pop(field, None)
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]


def _sparse(value: Any) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        item = getattr(value, field.name)
        if field.name != "name" and field.default is not dataclasses.MISSING:
            if item == field.default:
                continue
        if dataclasses.is_dataclass(item):
            item = _sparse(item)
        elif isinstance(item, tuple):
            item = list(item)
        result[field.name] = item
    return result


def _from_plain(cls: Any, data: Mapping[str, Any]) -> Any:
    hints = typing.get_type_hints(cls)
    unknown = sorted(set(data) - set(hints))
    if unknown:
        raise ValueError(
            f"{cls.__name__} has no field {', '.join(unknown)}; it has {sorted(hints)}"
        )
    values: dict[str, Any] = {}
    for key, item in data.items():
        hint = hints[key]
        options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        nested = next((o for o in options if dataclasses.is_dataclass(o)), None)
        if nested is not None and isinstance(item, Mapping):
            item = _from_plain(nested, item)
        elif isinstance(item, list):
            item = tuple(item)
        values[key] = item
    return cls(**values)
