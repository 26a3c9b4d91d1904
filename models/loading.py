"""One call from a name or a path to a model that can be planned for and served."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from weavejax.models.config import ModelConfig
from weavejax.models.packing import iter_params
from weavejax.models.specs import OperatorSpec
from weavejax.models.weights import WeightSource


@dataclass(frozen=True, kw_only=True)
class Model:
    """A config, where its weights are, and its tokenizer. Holds no weights itself."""

    config: ModelConfig
    source: WeightSource
    tokenizer: Any = None
    dtype: str | None = None
    """What weights are read as; ``None`` leaves the choice to whoever runs the model."""

    def operator_params(
        self, op: OperatorSpec, *, heads_ways: int = 1, dtype: Any = None
    ) -> dict[str, np.ndarray]:
        """Packed parameters of one operator, see :func:`weavejax.models.packing.operator_params`."""
        return dict(self.iter_params(op, heads_ways=heads_ways, dtype=dtype))

    def iter_params(
        self, op: OperatorSpec, *, heads_ways: int = 1, dtype: Any = None
    ) -> Iterator[tuple[str, np.ndarray]]:
        """The same, one parameter at a time: only that one is in memory."""
        target = dtype or self.dtype or "float32"
        return iter_params(op, self.config, self.source, heads_ways=heads_ways, dtype=target)
