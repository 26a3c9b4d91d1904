"""Checkpoint tensors to the parameters that :func:`operator_sequence` declares.

:mod:`weavejax.models.recipes` says which tensors make a parameter; this module reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from weavejax.models.config import ModelConfig
from weavejax.models.recipes import Recipe, param_recipe
from weavejax.models.sequence import operator_sequence
from weavejax.models.specs import OperatorSpec
from weavejax.models.weights import CheckpointError, WeightSource, as_dtype, require

def operator_params(
    op: OperatorSpec,
    config: ModelConfig,
    source: WeightSource,
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
        Parameter name to array, names and shapes as declared.

    Raises:
        CheckpointError: a tensor is missing, has another shape, or is cut short.
    """
    return dict(iter_params(op, config, source, heads_ways=heads_ways, dtype=dtype))


def iter_params(
    op: OperatorSpec,
    config: ModelConfig,
    source: WeightSource,
    *,
    heads_ways: int = 1,
    dtype: Any = np.float32,
) -> Iterator[tuple[str, np.ndarray]]:
    """Like :func:`operator_params`, one parameter at a time: only that one is in memory."""
    target, names = as_dtype(dtype), source.names()
    declared = operator_sequence(config, heads_ways)[op.index + 1]
    for param in declared.params:
        recipe = param_recipe(declared, param, config, names)
        check_recipe(recipe, declared, config, source)

        def read(position: int, index: int | None = None, recipe: Recipe = recipe) -> np.ndarray:
            name, _ = recipe.tensors[position]
            raw = name.endswith(("_blocks", "_scales"))  # MXFP4 codes, not numbers
            return source.read(name, np.uint8 if raw else target, index)

        array = np.empty(param.shape, target)
        recipe.fill(read, array)
        yield param.name, array


def check_recipe(
    recipe: Recipe, op: OperatorSpec, config: ModelConfig, source: WeightSource
) -> None:
    """Raise unless ``source`` has every tensor of ``recipe`` in the shape the config implies."""
    for name, expected in recipe.tensors:
        try:
            shape = source.shape(require(source, name))
        except CheckpointError as error:
            raise CheckpointError(
                f"{op.name} of {config.name} (model_type {config.model_type}): {error}"
            ) from None
        if shape != expected:
            raise CheckpointError(
                f"{op.name} of {config.name}: tensor {name!r} must have shape "
                f"{list(expected)} by the config, got {list(shape)} in {source.location}"
            )


def check_checkpoint(config: ModelConfig, source: WeightSource) -> None:
    """Check names and shapes of a whole checkpoint without reading any data.

    Raises:
        CheckpointError: a tensor is missing or has another shape, or the checkpoint has a tensor
            the config has no use for: it is then of another architecture.
    """
    names, used = source.names(), set[str]()
    for op in operator_sequence(config):
        for param in op.params:
            recipe = param_recipe(op, param, config, names)
            check_recipe(recipe, op, config, source)
            used.update(name for name, _ in recipe.tensors)
    unused = sorted(names - used - ({"lm_head.weight"} if config.tie_embeddings else set()))
    if unused:
        raise CheckpointError(
            f"{source.location}: a {config.model_type} model with {config.num_layers} layers has "
            f"no use for {len(unused)} of its tensors, the first is {unused[0]!r} "
            f"{list(source.shape(unused[0]))}; config.json must describe the same model"
        )
