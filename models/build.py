"""From an operator's spec to its Flax NNX module: the one place that knows every class."""

from __future__ import annotations

from collections.abc import Mapping

import jax

from weavejax.models.attention import AttentionCore, AttentionIn, AttentionOut
from weavejax.models.config import ModelConfig
from weavejax.models.delta_net import DeltaNetCore, DeltaNetIn, DeltaNetOut
from weavejax.models.embedding import Embed, Head
from weavejax.models.feed_forward import DenseFeedForward, MoeFeedForward
from weavejax.models.operator import Operator
from weavejax.models.specs import OperatorSpec

_SOFTMAX = {"attn_in": AttentionIn, "attn_core": AttentionCore, "attn_out": AttentionOut}
_LINEAR = {"attn_in": DeltaNetIn, "attn_core": DeltaNetCore, "attn_out": DeltaNetOut}
_FEED_FORWARD = {"dense": DenseFeedForward, "moe": MoeFeedForward}
_ENDS = {"embed": Embed, "head": Head}


def operator_class(spec: OperatorSpec) -> type[Operator]:
    """The module class that computes ``spec``."""
    if spec.layer_kind is None:
        return _ENDS[spec.kind]
    if spec.kind == "ffn":
        return _FEED_FORWARD[spec.layer_kind.ffn]
    return (_LINEAR if spec.layer_kind.attention == "linear" else _SOFTMAX)[spec.kind]


def build_operator(
    spec: OperatorSpec, config: ModelConfig, params: Mapping[str, jax.Array]
) -> Operator:
    """The module of ``spec`` over existing arrays (whole, or one rank's part)."""
    return operator_class(spec)(spec, config, params)
