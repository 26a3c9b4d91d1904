"""Softmax attention as operator specs: projections, core, output."""

from __future__ import annotations

from weavejax.models.config import LayerKind, ModelConfig
from weavejax.models.spec_parts import layer_operator, norm, stream
from weavejax.models.specs import (
    Attention,
    Dim,
    Elementwise,
    Gemm,
    OperatorSpec,
    ParamSpec,
    StateSpec,
    TensorSpec,
)


def attention_specs(
    config: ModelConfig, layer: int, kind: LayerKind, heads_ways: int
) -> list[OperatorSpec]:
    """``attn_in``, ``attn_core`` and ``attn_out`` of a full or sliding layer.

    Packed per key/value head, which tensor parallelism cuts; more ranks than those repeat them.
    """
    hidden, width = config.hidden_size, config.head_dim
    heads, kv_heads = config.num_heads, config.num_kv_heads
    gates = 2 if config.attention_gate else 1
    window = config.sliding_window if kind.attention == "sliding" else None
    x, mid = stream(config, f"x.{layer}"), stream(config, f"h.{layer}")
    q = TensorSpec(f"q.{layer}", (heads, width), ("heads", None))
    k = TensorSpec(f"k.{layer}", (kv_heads, width), ("kv_heads", None))
    v = TensorSpec(f"v.{layer}", (kv_heads, width), ("kv_heads", None))
    gate = TensorSpec(f"gate.{layer}", (heads, width), ("heads", None))
    attn = TensorSpec(f"attn.{layer}", (heads, width), ("heads", None))
    gate_tensors = (gate,) if config.attention_gate else ()

    params = _params(config, groups=max(kv_heads, heads_ways))
    kv = Dim(kv_heads, width, sharded=True, axis="kv_heads")
    length = "context" if window is None else "window"
    qkv = (
        Dim(heads, gates * width, sharded=True),
        Dim(kv_heads, 2 * width, sharded=True),
    )
    return [
        layer_operator(
            layer,
            kind,
            "attn_in",
            (x,),
            outputs=(q, k, v, *gate_tensors),
            params=params[0],
            kernels=(
                Elementwise("norm", 2 * hidden),
                Gemm("qkv", Dim(hidden), qkv),
                Elementwise("rope", 2 * (heads + kv_heads) * width),
            ),
        ),
        layer_operator(
            layer,
            kind,
            "attn_core",
            (q, k, v),
            outputs=(attn,),
            params=params[1],
            state=(
                StateSpec("k", length, (kv,), window, positions_last=True),
                StateSpec("v", length, (kv,), window),
            ),
            kernels=(Attention(heads, kv_heads, width, window),),
        ),
        layer_operator(
            layer,
            kind,
            "attn_out",
            (attn, *gate_tensors, x),
            outputs=(mid,),
            params=params[2],
            kernels=(
                Gemm("o", Dim(heads, width, sharded=True), (Dim(hidden),)),
                Elementwise("residual", 3 * hidden),
            ),
            all_reduce_elements=hidden,
        ),
    ]


def _params(config: ModelConfig, groups: int) -> tuple[tuple[ParamSpec, ...], ...]:
    """Of ``attn_in``, ``attn_core`` and ``attn_out``."""
    hidden, width = config.hidden_size, config.head_dim
    per_group = config.num_heads // groups
    gates = 2 if config.attention_gate else 1
    packed = per_group * gates + 2
    in_params = [norm("norm", hidden)]
    in_params.append(ParamSpec("qkv", (groups, packed, width, hidden), ("heads", None, None, None)))
    if config.qkv_bias:
        in_params.append(ParamSpec("qkv_bias", (groups, packed, width), ("heads", None, None)))
    if config.qk_norm:
        in_params += [norm("q_norm", width), norm("k_norm", width)]
    core_params: list[ParamSpec] = []
    if config.attention_sinks:
        core_params.append(ParamSpec("sinks", (groups, per_group), ("heads", None)))
    out_params = [ParamSpec("o", (hidden, groups, per_group, width), (None, "heads", None, None))]
    if config.output_bias:
        out_params.append(norm("o_bias", hidden))
    if config.post_norms:
        out_params.append(norm("post_norm", hidden))
    return tuple(in_params), tuple(core_params), tuple(out_params)
