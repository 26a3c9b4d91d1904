"""Checkpoint tensors to the parameters that :func:`operator_sequence` declares.

One table says, per parameter, which Hugging Face tensors make it and how. It serves reading,
checking a checkpoint before anything is read, and random weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from weavejax.models import attention_recipes as attention
from weavejax.models import expert_recipes as expert
from weavejax.models.config import ModelConfig
from weavejax.models.recipe import Make, Recipe, Site, gate_up, matrix, vector, whole
from weavejax.models.sequence import operator_sequence
from weavejax.models.specs import OperatorSpec, ParamSpec
from weavejax.models.weights import (
    CheckpointError,
    PackedSource,
    WeightSource,
    as_dtype,
    require,
)

_RECIPES: dict[str, Make] = {
    "embed.embedding": whole("model.embed_tokens.weight"),
    "head.norm": whole("model.norm.weight"),
    "head.unembed": whole("lm_head.weight", tied="model.embed_tokens.weight"),
    "attn_in.norm": vector("input_layernorm.weight"),
    "attn_in.qkv": attention.qkv("weight"),
    "attn_in.qkv_bias": attention.qkv("bias"),
    "attn_in.q_norm": vector("self_attn.q_norm.weight"),
    "attn_in.k_norm": vector("self_attn.k_norm.weight"),
    "attn_core.sinks": vector("self_attn.sinks"),
    "attn_out.o": matrix("self_attn.o_proj.weight"),
    "attn_out.o_bias": vector("self_attn.o_proj.bias"),
    "attn_out.post_norm": vector("post_attention_layernorm.weight"),
    "attn_in.in_proj": attention.delta_in_proj,
    "attn_core.conv": attention.delta_conv,
    "attn_core.a_log": vector("linear_attn.A_log"),
    "attn_core.dt_bias": vector("linear_attn.dt_bias"),
    "attn_out.gated_norm": vector("linear_attn.norm.weight"),
    "ffn.norm": vector("post_attention_layernorm.weight"),
    "ffn.gate_up": gate_up("mlp"),
    "ffn.down": matrix("mlp.down_proj.weight"),
    "ffn.router": expert.router("weight"),
    "ffn.router_bias": expert.router("bias"),
    "ffn.experts_gate_up": expert.experts_gate_up,
    "ffn.experts_gate_up_bias": expert.experts_gate_up_bias,
    "ffn.experts_down": expert.experts_down,
    "ffn.experts_down_bias": expert.experts_down_bias,
    "ffn.shared_gate_up": gate_up("mlp.shared_expert"),
    "ffn.shared_down": matrix("mlp.shared_expert.down_proj.weight"),
    "ffn.shared_gate": matrix("mlp.shared_expert_gate.weight"),
    "ffn.post_norm": vector("post_feedforward_layernorm.weight"),
}
# Same parameter, other name: with post-norms, and in linear-attention layers.
_POST_NORM_RECIPES: dict[str, Make] = {"ffn.norm": vector("pre_feedforward_layernorm.weight")}
_LINEAR_RECIPES: dict[str, Make] = {"attn_out.o": matrix("linear_attn.out_proj.weight")}


def operator_params(
    op: OperatorSpec,
    config: ModelConfig,
    source: WeightSource | PackedSource,
    *,
    heads_ways: int = 1,
    dtype: Any = np.float32,
) -> dict[str, np.ndarray]:
    """Read one operator's parameters in the layout its :class:`ParamSpec` entries declare.

    Args:
        op: an operator of ``operator_sequence(config)``; found by its index.
        config: the model.
        source: where tensors come from.
        heads_ways: ranks the attention heads are cut over (see :func:`operator_sequence`).
        dtype: of the result.

    Returns:
        Parameter name to array; names and shapes are the declared ones.

    Raises:
        CheckpointError: a tensor is missing, has another shape, or is cut short.
    """
    return dict(iter_params(op, config, source, heads_ways=heads_ways, dtype=dtype))


def iter_params(
    op: OperatorSpec,
    config: ModelConfig,
    source: WeightSource | PackedSource,
    *,
    heads_ways: int = 1,
    dtype: Any = np.float32,
) -> Iterator[tuple[str, np.ndarray]]:
    """Like :func:`operator_params`, one parameter at a time: only that one is in memory."""
    declared = operator_sequence(config, heads_ways)[op.index + 1]
    if isinstance(source, PackedSource):
        yield from source.read_packed(declared, dtype)
        return
    target, names = as_dtype(dtype), source.names()
    for param in declared.params:
        recipe = param_recipe(declared, param, config, names)
        _check(recipe, declared, config, source)

        def read(position: int, index: int | None = None, recipe: Recipe = recipe) -> np.ndarray:
            name, _ = recipe.tensors[position]
            codes = name.endswith(("_blocks", "_scales"))
            return source.read(name, np.uint8 if codes else target, index)

        if recipe.fill is None:
            array = read(0).reshape(param.shape)
        else:
            array = np.empty(param.shape, target)
            recipe.fill(read, array)
        yield param.name, array
        del array  # before the next one is made


def check_checkpoint(config: ModelConfig, source: WeightSource) -> None:
    """Check names and shapes of a whole checkpoint without reading its data.

    Raises:
        CheckpointError: a tensor is missing or has another shape, or the checkpoint has one that
            the config has no use for: it is then of another architecture.
    """
    names, used = source.names(), set[str]()
    for op in operator_sequence(config):
        for param in op.params:
            recipe = param_recipe(op, param, config, names)
            _check(recipe, op, config, source)
            used.update(name for name, _ in recipe.tensors)
    unused = sorted(names - used - ({"lm_head.weight"} if config.tie_embeddings else set()))
    if unused:
        raise CheckpointError(
            f"{source.location}: a {config.model_type} model of {config.num_layers} layers uses "
            f"every tensor of its checkpoint, but {len(unused)} are left over, the first is "
            f"{unused[0]!r} {list(source.shape(unused[0]))}; the config is of another model"
        )


def checkpoint_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor a checkpoint of ``config`` has (experts one by one).

    Examples:
        >>> from weavejax.models import preset_config
        >>> checkpoint_tensors(preset_config("smollm2-135m-instruct"))["model.norm.weight"]
        (576,)
    """
    return {
        name: shape
        for op in operator_sequence(config)
        for param in op.params
        for name, shape in param_recipe(op, param, config).tensors
    }


def param_recipe(
    op: OperatorSpec, param: ParamSpec, config: ModelConfig, names: frozenset[str] = frozenset()
) -> Recipe:
    """How to make one parameter; ``names`` picks among the forms a checkpoint may have."""
    key = f"{op.kind}.{param.name}"
    make = _RECIPES[key]
    if config.post_norms:
        make = _POST_NORM_RECIPES.get(key, make)
    if op.layer_kind is not None and op.layer_kind.attention == "linear":
        make = _LINEAR_RECIPES.get(key, make)
    return make(Site(config=config, layer=op.layer, shape=param.shape, names=names))


def _check(recipe: Recipe, op: OperatorSpec, config: ModelConfig, source: WeightSource) -> None:
    for name, expected in recipe.tensors:
        try:
            shape = source.shape(require(source, name))
        except CheckpointError as error:
            raise CheckpointError(f"{op.name} of a {config.model_type} model: {error}") from None
        if shape != expected:
            raise CheckpointError(
                f"{op.name} of a {config.model_type} model: tensor {name!r} must have shape "
                f"{list(expected)} by the config, got {list(shape)} in {source.location}"
            )
