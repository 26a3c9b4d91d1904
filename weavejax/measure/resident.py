"""A model whose weights stay on a device, so that many engines share them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax

from weavejax.models.loading import Model
from weavejax.models.specs import OperatorSpec


@dataclass(frozen=True, kw_only=True)
class ResidentModel(Model):
    """Reads every weight once and keeps it on the first device.

    An engine there uses the same buffers; one on another device copies them.
    """

    kept: dict[Any, list[tuple[str, jax.Array]]] = field(default_factory=dict, compare=False)

    def iter_params(
        self, op: OperatorSpec, *, heads_ways: int = 1, dtype: Any = None
    ) -> Iterator[tuple[str, Any]]:
        """See :meth:`weavejax.models.loading.Model.iter_params`."""
        key = (op.index, heads_ways, str(dtype))
        if key not in self.kept:
            read = super().iter_params(op, heads_ways=heads_ways, dtype=dtype)
            self.kept[key] = [
                (name, jax.device_put(value, jax.devices()[0])) for name, value in read
            ]
        yield from self.kept[key]


def keep_resident(model: Model) -> ResidentModel:
    """The same model, whose weights are read once."""
    return ResidentModel(
        config=model.config,
        source=model.source,
        tokenizer=model.tokenizer,
        eos_token_ids=model.eos_token_ids,
        dtype=model.dtype,
    )
