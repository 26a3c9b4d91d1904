"""Config to operators: the linear operator sequence of a model, as plain data.

Every layer contributes ``attn_in``, ``attn_core``, ``attn_out`` and ``ffn``; ``embed`` precedes
the first operator and ``head`` follows the last.
"""

from __future__ import annotations

from functools import lru_cache

from weavejax.models.config import LayerKind, ModelConfig
from weavejax.models.specs import (
    LAYER_OPERATORS,
    Attention,
    DeltaNet,
    Dim,
    Elementwise,
    Experts,
    Gemm,
    Kernel,
    OperatorSpec,
    ParamSpec,
    StateSpec,
    TensorSpec,
)


@lru_cache(maxsize=64)
def operator_sequence(config: ModelConfig, heads_ways: int = 1) -> tuple[OperatorSpec, ...]:
    """The operators of ``config`` in model order, ``embed`` first and ``head`` last.

    Args:
        config: the model.
        heads_ways: ranks the attention heads are cut over. More ranks than key/value heads
            replicate those heads, which shows in the packed parameter shapes only.

    Raises:
        ValueError: heads that do not divide over ``heads_ways`` ranks.

    Examples:
        >>> from weavejax.models import preset_config
        >>> ops = operator_sequence(preset_config("smollm2-135m-instruct"))
        >>> [op.name for op in ops[:3]], len(ops)
        (['embed', 'layers.0.attn_in', 'layers.0.attn_core'], 122)
    """
    check_heads(config, heads_ways)
    operators = [_embed(config)]
    for layer, kind in enumerate(config.layer_kinds):
        if kind.attention == "linear":
            operators += _delta_net(config, layer, kind)
        else:
            operators += _attention(config, layer, kind, heads_ways)
        operators.append(_ffn(config, layer, kind))
    operators.append(_head(config))
    return tuple(operators)


def check_heads(config: ModelConfig, ways: int) -> None:
    """Raise unless every head count of ``config`` can be cut over ``ways`` ranks."""
    counts = {"num_heads": config.num_heads}
    if config.linear is not None:
        counts["linear key heads"] = config.linear.num_key_heads
    for name, count in counts.items():
        if count % ways:
            raise ValueError(
                f"{config.name}: {name} must divide over tensor-parallel ranks, "
                f"got {count} heads for {ways} ranks"
            )
    if config.num_kv_heads % ways and ways % config.num_kv_heads:
        raise ValueError(
            f"{config.name}: key/value heads must divide over the ranks or the ranks over them, "
            f"got {config.num_kv_heads} heads for {ways} ranks"
        )


def _x(config: ModelConfig, name: str) -> TensorSpec:
    return TensorSpec(name, (config.hidden_size,), ("hidden",))


def _norm(name: str, size: int) -> ParamSpec:
    return ParamSpec(name, (size,), (None,))


def _operator(
    layer: int, kind: LayerKind, op: str, inputs: tuple[TensorSpec, ...], **rest: object
) -> OperatorSpec:
    return OperatorSpec(
        name=f"layers.{layer}.{op}",
        kind=op,  # type: ignore[arg-type]
        index=4 * layer + LAYER_OPERATORS.index(op),  # type: ignore[arg-type]
        layer=layer,
        layer_kind=kind,
        inputs=inputs,
        **rest,  # type: ignore[arg-type]
    )


def _attention(
    config: ModelConfig, layer: int, kind: LayerKind, heads_ways: int
) -> list[OperatorSpec]:
    hidden, width = config.hidden_size, config.head_dim
    heads, kv_heads = config.num_heads, config.num_kv_heads
    groups = max(kv_heads, heads_ways)  # packed per key/value head, which tensor parallelism cuts
    per_group = heads // groups
    gates = 2 if config.attention_gate else 1
    window = config.sliding_window if kind.attention == "sliding" else None
    x, mid = _x(config, f"x.{layer}"), _x(config, f"h.{layer}")
    q = TensorSpec(f"q.{layer}", (heads, width), ("heads", None))
    k = TensorSpec(f"k.{layer}", (kv_heads, width), ("kv_heads", None))
    v = TensorSpec(f"v.{layer}", (kv_heads, width), ("kv_heads", None))
    gate = TensorSpec(f"gate.{layer}", (heads, width), ("heads", None))
    attn = TensorSpec(f"attn.{layer}", (heads, width), ("heads", None))
    gate_tensors = (gate,) if config.attention_gate else ()

    packed = per_group * gates + 2
    in_params = [_norm("norm", hidden)]
    in_params.append(ParamSpec("qkv", (hidden, groups, packed, width), (None, "heads", None, None)))
    if config.qkv_bias:
        in_params.append(ParamSpec("qkv_bias", (groups, packed, width), ("heads", None, None)))
    if config.qk_norm:
        in_params += [_norm("q_norm", width), _norm("k_norm", width)]
    core_params: list[ParamSpec] = []
    if config.attention_sinks:
        core_params.append(ParamSpec("sinks", (groups, per_group), ("heads", None)))
    out_params = [ParamSpec("o", (groups, per_group, width, hidden), ("heads", None, None, None))]
    if config.output_bias:
        out_params.append(_norm("o_bias", hidden))
    if config.post_norms:
        out_params.append(_norm("post_norm", hidden))

    kv = Dim(kv_heads, width, sharded=True, axis="kv_heads")
    length = "context" if window is None else "window"
    qkv = (
        Dim(heads, gates * width, sharded=True),
        Dim(kv_heads, 2 * width, sharded=True),
    )
    return [
        _operator(
            layer,
            kind,
            "attn_in",
            (x,),
            outputs=(q, k, v, *gate_tensors),
            params=tuple(in_params),
            kernels=(
                Elementwise("norm", 2 * hidden),
                Gemm("qkv", Dim(hidden), qkv),
                Elementwise("rope", 2 * (heads + kv_heads) * width),
            ),
        ),
        _operator(
            layer,
            kind,
            "attn_core",
            (q, k, v),
            outputs=(attn,),
            params=tuple(core_params),
            state=(
                StateSpec("k", length, (kv,), window),
                StateSpec("v", length, (kv,), window),
            ),
            kernels=(Attention(heads, kv_heads, width, window),),
        ),
        _operator(
            layer,
            kind,
            "attn_out",
            (attn, *gate_tensors, x),
            outputs=(mid,),
            params=tuple(out_params),
            kernels=(
                Gemm("o", Dim(heads, width, sharded=True), (Dim(hidden),)),
                Elementwise("residual", 3 * hidden),
            ),
            all_reduce_elements=hidden,
        ),
    ]


def _delta_net(config: ModelConfig, layer: int, kind: LayerKind) -> list[OperatorSpec]:
    linear = config.linear
    assert linear is not None
    hidden = config.hidden_size
    keys, ratio = linear.num_key_heads, linear.num_value_heads // linear.num_key_heads
    dk, dv = linear.key_head_dim, linear.value_head_dim
    mixed = 2 * dk + ratio * dv
    x, mid = _x(config, f"x.{layer}"), _x(config, f"h.{layer}")
    qkv = TensorSpec(f"qkv.{layer}", (keys, mixed), ("heads", None))
    decay = TensorSpec(f"ba.{layer}", (keys, 2 * ratio), ("heads", None))
    z = TensorSpec(f"z.{layer}", (keys, ratio * dv), ("heads", None))
    attn = TensorSpec(f"attn.{layer}", (keys, ratio * dv), ("heads", None))
    width = mixed + ratio * dv + 2 * ratio
    heads = Dim(keys, mixed, sharded=True, axis="heads")
    return [
        _operator(
            layer,
            kind,
            "attn_in",
            (x,),
            outputs=(qkv, decay, z),
            params=(
                _norm("norm", hidden),
                ParamSpec("in_proj", (hidden, keys, width), (None, "heads", None)),
            ),
            kernels=(
                Elementwise("norm", 2 * hidden),
                Gemm("in_proj", Dim(hidden), (Dim(keys, width, sharded=True),)),
            ),
        ),
        _operator(
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
        _operator(
            layer,
            kind,
            "attn_out",
            (attn, z, x),
            outputs=(mid,),
            params=(
                _norm("gated_norm", dv),
                ParamSpec("o", (keys, ratio * dv, hidden), ("heads", None, None)),
            ),
            kernels=(
                Elementwise("gated_norm", 3 * keys * ratio * dv),
                Gemm("o", Dim(keys, ratio * dv, sharded=True), (Dim(hidden),)),
                Elementwise("residual", 3 * hidden),
            ),
            all_reduce_elements=hidden,
        ),
    ]


def _ffn(config: ModelConfig, layer: int, kind: LayerKind) -> OperatorSpec:
    hidden = config.hidden_size
    params = [_norm("norm", hidden)]
    kernels: list[Kernel] = [Elementwise("norm", 2 * hidden)]
    if kind.ffn == "dense":
        params += _mlp_params("", hidden, config.intermediate_size)
        kernels += _mlp_kernels("", hidden, config.intermediate_size)
    else:
        moe = config.moe
        assert moe is not None
        experts, inner = moe.num_experts, moe.intermediate_size
        params += [
            ParamSpec("router", (hidden, experts), (None, None)),
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
            params.append(ParamSpec("shared_gate", (hidden, 1), (None, None)))
    if config.post_norms:
        params.append(_norm("post_norm", hidden))
    kernels.append(Elementwise("residual", 3 * hidden))
    return _operator(
        layer,
        kind,
        "ffn",
        (_x(config, f"h.{layer}"),),
        outputs=(_x(config, f"x.{layer + 1}"),),
        params=tuple(params),
        kernels=tuple(kernels),
        all_reduce_elements=hidden,
    )


def _mlp_params(prefix: str, hidden: int, inner: int) -> list[ParamSpec]:
    return [
        ParamSpec(f"{prefix}gate_up", (hidden, 2, inner), (None, None, "mlp")),
        ParamSpec(f"{prefix}down", (inner, hidden), ("mlp", None)),
    ]


def _mlp_kernels(prefix: str, hidden: int, inner: int) -> list[Kernel]:
    return [
        Gemm(f"{prefix}gate_up", Dim(hidden), (Dim(inner, 2, sharded=True),)),
        Elementwise(f"{prefix}activation", 3 * inner),
        Gemm(f"{prefix}down", Dim(inner, sharded=True), (Dim(hidden),)),
    ]


def _embed(config: ModelConfig) -> OperatorSpec:
    return OperatorSpec(
        name="embed",
        kind="embed",
        index=-1,
        layer=None,
        layer_kind=None,
        inputs=(TensorSpec("ids", (), ()),),
        outputs=(_x(config, "x.0"),),
        params=(ParamSpec("embedding", (config.vocab_size, config.hidden_size), ("vocab", None)),),
        kernels=(Elementwise("lookup", 2 * config.hidden_size),),
        all_reduce_elements=config.hidden_size,
    )


def _head(config: ModelConfig) -> OperatorSpec:
    hidden, vocab = config.hidden_size, config.vocab_size
    return OperatorSpec(
        name="head",
        kind="head",
        index=4 * config.num_layers,
        layer=None,
        layer_kind=None,
        inputs=(_x(config, f"x.{config.num_layers}"),),
        outputs=(TensorSpec("ids", (), ()),),
        params=(
            _norm("norm", hidden),
            ParamSpec(
                "unembed",
                (vocab, hidden),
                ("vocab", None),
                shared="embed.embedding" if config.tie_embeddings else None,
            ),
        ),
        kernels=(
            Elementwise("norm", 2 * hidden),
            Gemm("unembed", Dim(hidden), (Dim(vocab, sharded=True),)),
            Elementwise("sampling", vocab),
        ),
    )
