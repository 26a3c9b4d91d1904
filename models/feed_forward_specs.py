"""Dense and routed feed-forward as operator specs."""

from __future__ import annotations

from weavejax.models.config import LayerKind, ModelConfig
from weavejax.models.spec_parts import layer_operator, norm, stream
from weavejax.models.specs import (
    Dim,
    Elementwise,
    Experts,
    Gemm,
    Kernel,
    OperatorSpec,
    ParamSpec,
)


def feed_forward_spec(config: ModelConfig, layer: int, kind: LayerKind) -> OperatorSpec:
    """``ffn``: a gated MLP, or routed experts with an optional shared one."""
    hidden = config.hidden_size
    params = [norm("norm", hidden)]
    kernels: list[Kernel] = [Elementwise("norm", 2 * hidden)]
    if kind.ffn == "dense":
        params += _mlp_params("", hidden, config.intermediate_size)
        kernels += _mlp_kernels("", hidden, config.intermediate_size)
    else:
        moe = config.moe
        assert moe is not None
        experts, inner = moe.num_experts, moe.intermediate_size
        params += [
            ParamSpec("router", (experts, hidden), (None, None)),
            ParamSpec(
                "experts_gate_up",
                (experts, hidden, 2, inner),
                ("experts", None, None, "expert_mlp"),
            ),
            ParamSpec("experts_down", (experts, inner, hidden), ("experts", "expert_mlp", None)),
        ]
        if moe.bias:
            params += [
                ParamSpec("router_bias", (experts,), (None,)),
                ParamSpec(
                    "experts_gate_up_bias", (experts, 2, inner), ("experts", None, "expert_mlp")
                ),
                ParamSpec("experts_down_bias", (experts, hidden), ("experts", None)),
            ]
        kernels += [
            Gemm("router", Dim(hidden), (Dim(experts),)),
            Experts(hidden, inner, experts, moe.experts_per_token),
        ]
        if moe.shared_intermediate_size:
            params += _mlp_params("shared_", hidden, moe.shared_intermediate_size)
            kernels += _mlp_kernels("shared_", hidden, moe.shared_intermediate_size)
        if moe.shared_gate:
            params.append(ParamSpec("shared_gate", (1, hidden), (None, None)))
    if config.post_norms:
        params.append(norm("post_norm", hidden))
    kernels.append(Elementwise("residual", 3 * hidden))
    return layer_operator(
        layer,
        kind,
        "ffn",
        (stream(config, f"h.{layer}"),),
        outputs=(stream(config, f"x.{layer + 1}"),),
        params=tuple(params),
        kernels=tuple(kernels),
        all_reduce_elements=hidden,
    )


def _mlp_params(prefix: str, hidden: int, inner: int) -> list[ParamSpec]:
    return [
        ParamSpec(f"{prefix}gate_up", (2, inner, hidden), (None, "mlp", None)),
        ParamSpec(f"{prefix}down", (hidden, inner), (None, "mlp")),
    ]


def _mlp_kernels(prefix: str, hidden: int, inner: int) -> list[Kernel]:
    return [
        Gemm(f"{prefix}gate_up", Dim(hidden), (Dim(inner, 2, sharded=True),)),
        Elementwise(f"{prefix}activation", 3 * inner),
        Gemm(f"{prefix}down", Dim(inner, sharded=True), (Dim(hidden),)),
    ]
