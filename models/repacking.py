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
        >>> param = ParamSpec("qkv", (9, 3, 64, 2), ("heads", None, None, None))
        >>> repack(np.zeros((3, 5, 64, 2)), param, config).shape
        (9, 3, 64, 2)
    """
    if array.shape == param.shape:
        return array
    if not param.name.startswith("qkv"):
        return array.reshape(param.shape)
    heads, packed, *rest = array.shape
    ways, per_group = param.shape[0] // heads, config.num_heads // heads
    gates = (packed - 2) // per_group
    # [kv heads, gates, query heads, ...]: the query heads are what is cut.
    queries = array[:, :-2].reshape(heads, gates, ways, per_group // ways, *rest)
    queries = queries.swapaxes(1, 2).reshape(heads * ways, -1, *rest)
    return np.concatenate([queries, np.repeat(array[:, -2:], ways, axis=0)], axis=1)
