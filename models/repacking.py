"""From the packing for one rank to the packing for ranks that repeat key/value heads."""

from __future__ import annotations

import numpy as np

from weavejax.models.config import ModelConfig
from weavejax.models.specs import ParamSpec


def repack(array: np.ndarray, param: ParamSpec, config: ModelConfig) -> np.ndarray:
    """A parameter packed per key/value head, in the shape that ``param`` declares.

    With more ranks than key/value heads a group of query heads is cut and every part gets a copy
    of the key and value (see :func:`weavejax.models.sequence.operator_sequence`); other
    parameters keep their values' order.

    Examples:
        >>> import dataclasses
        >>> from weavejax.models import preset_config
        >>> config = preset_config("smollm2-135m-instruct")  # 9 heads over 3
        >>> param = ParamSpec("qkv", (2, 9, 3, 64), (None, "heads", None, None))
        >>> repack(np.zeros((2, 3, 5, 64)), param, config).shape
        (2, 9, 3, 64)
    """
    if array.shape == param.shape:
        return array
    if not param.name.startswith("qkv"):
        return array.reshape(param.shape)
    *lead, heads, packed, width = array.shape
    ways, per_group = param.shape[-3] // heads, config.num_heads // heads
    gates = (packed - 2) // per_group
    # [.., kv heads, gates, query heads, width]: the query heads are what is cut.
    queries = array[..., :-2, :].reshape(*lead, heads, gates, ways, per_group // ways, width)
    queries = np.moveaxis(queries, -3, -4)
    queries = queries.reshape(*lead, heads * ways, -1, width)
    return np.concatenate([queries, np.repeat(array[..., -2:, :], ways, axis=-3)], axis=-2)
