"""The gated delta net as operator specs: projections, core, output."""

from __future__ import annotations

from weavejax.models.config import LayerKind, ModelConfig
from weavejax.models.spec_parts import layer_operator, norm, stream
from weavejax.models.specs import (
    DeltaNet,
    Dim,
    Elementwise,
    Gemm,
    OperatorSpec,
    ParamSpec,
    StateSpec,
    TensorSpec,
)


def delta_net_specs(config: ModelConfig, layer: int, kind: LayerKind) -> list[OperatorSpec]:
    """``attn_in``, ``attn_core`` and ``attn_out`` of a linear layer."""
    linear, hidden = config.linear, config.hidden_size
    assert linear is not None
    keys, ratio = linear.num_key_heads, linear.num_value_heads // linear.num_key_heads
    dk, dv = linear.key_head_dim, linear.value_head_dim
    mixed = 2 * dk + ratio * dv
    x, mid = stream(config, f"x.{layer}"), stream(config, f"h.{layer}")
    qkv = TensorSpec(f"qkv.{layer}", (keys, mixed), ("heads", None))
    decay = TensorSpec(f"ba.{layer}", (keys, 2 * ratio), ("heads", None))
    z = TensorSpec(f"z.{layer}", (keys, ratio * dv), ("heads", None))
    attn = TensorSpec(f"attn.{layer}", (keys, ratio * dv), ("heads", None))
    width = mixed + ratio * dv + 2 * ratio
    heads = Dim(keys, mixed, sharded=True, axis="heads")
    return [
        layer_operator(
            layer,
            kind,
            "attn_in",
            (x,),
            outputs=(qkv, decay, z),
            params=(
                norm("norm", hidden),
                ParamSpec("in_proj", (keys, width, hidden), ("heads", None, None)),
            ),
            kernels=(
                Elementwise("norm", 2 * hidden),
                Gemm("in_proj", Dim(hidden), (Dim(keys, width, sharded=True),)),
            ),
        ),
        layer_operator(
            layer,
            kind,
            "attn_core",
            (qkv, decay),
            outputs=(attn,),
            params=(
                ParamSpec("conv", (keys, mixed, linear.conv_kernel), ("heads", None, None)),
                ParamSpec("a_log", (keys, ratio), ("heads", None)),
                ParamSpec("dt_bias", (keys, ratio), ("heads", None)),
            ),
            state=(
                StateSpec("conv", "constant", (heads, Dim(linear.conv_kernel - 1))),
                StateSpec(
                    "recurrent",
                    "constant",
                    (Dim(keys, ratio, sharded=True, axis="heads"), Dim(dk), Dim(dv)),
                    dtype="float32",
                ),
            ),
            kernels=(DeltaNet(keys, linear.num_value_heads, dk, dv, linear.conv_kernel),),
        ),
        layer_operator(
            layer,
            kind,
            "attn_out",
            (attn, z, x),
            outputs=(mid,),
            params=(
                norm("gated_norm", dv),
                ParamSpec("o", (hidden, keys, ratio * dv), (None, "heads", None)),
            ),
            kernels=(
                Elementwise("gated_norm", 3 * keys * ratio * dv),
                Gemm("o", Dim(keys, ratio * dv, sharded=True), (Dim(hidden),)),
                Elementwise("residual", 3 * hidden),
            ),
            all_reduce_elements=hidden,
        ),
    ]
