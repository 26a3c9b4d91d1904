"""Pieces that the specs of all operators share."""

from __future__ import annotations

from weavejax.models.config import LayerKind, ModelConfig
from weavejax.models.specs import LAYER_OPERATORS, OperatorSpec, ParamSpec, TensorSpec


def stream(config: ModelConfig, name: str) -> TensorSpec:
    """A residual stream."""
    return TensorSpec(name, (config.hidden_size,), ("hidden",))


def norm(name: str, size: int) -> ParamSpec:
    """A weight that every rank holds whole."""
    return ParamSpec(name, (size,), (None,))


def layer_operator(
    layer: int, kind: LayerKind, op: str, inputs: tuple[TensorSpec, ...], **rest: object
) -> OperatorSpec:
    """An operator of a layer, at its place in the sequence."""
    return OperatorSpec(
        name=f"layers.{layer}.{op}",
        kind=op,  # type: ignore[arg-type]
        index=4 * layer + LAYER_OPERATORS.index(op),  # type: ignore[arg-type]
        layer=layer,
        layer_kind=kind,
        inputs=inputs,
        **rest,  # type: ignore[arg-type]
    )
