"""Config to operators: the linear operator sequence of a model, as plain data.

Every layer contributes ``attn_in``, ``attn_core``, ``attn_out`` and ``ffn``; ``embed`` precedes
the first operator and ``head`` follows the last.
"""

from __future__ import annotations

from functools import lru_cache

from weavejax.models.attention_specs import attention_specs
from weavejax.models.config import ModelConfig
from weavejax.models.delta_net_specs import delta_net_specs
from weavejax.models.feed_forward_specs import feed_forward_spec
from weavejax.models.spec_parts import norm, stream
from weavejax.models.specs import Dim, Elementwise, Gemm, OperatorSpec, ParamSpec, TensorSpec


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
            operators += delta_net_specs(config, layer, kind)
        else:
            operators += attention_specs(config, layer, kind, heads_ways)
        operators.append(feed_forward_spec(config, layer, kind))
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


def _embed(config: ModelConfig) -> OperatorSpec:
    return OperatorSpec(
        name="embed",
        kind="embed",
        index=-1,
        layer=None,
        layer_kind=None,
        inputs=(TensorSpec("ids", (), ()),),
        outputs=(stream(config, "x.0"),),
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
        inputs=(stream(config, f"x.{config.num_layers}"),),
        outputs=(TensorSpec("ids", (), ()),),
        params=(
            norm("norm", hidden),
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
