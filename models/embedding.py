"""The ends of the model: token ids to ``x``, and ``x`` to logits."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from weavejax.models.norms import softcap
from weavejax.models.operator import Operator, Tensors
from weavejax.models.products import project_float32
from weavejax.models.step import Step

Array = jax.Array


class Embed(Operator):
    """``ids`` ``[b, t]`` to ``x``. The vocabulary is cut over the ranks."""

    def __call__(self, tensors: Tensors, state: Tensors, step: Step) -> tuple[Tensors, Tensors]:
        table, ids = self.weight("embedding"), tensors["ids"]
        if step.axis is None:
            x = table[ids]
        else:
            ids = ids - step.rank() * table.shape[0]
            mine = (ids >= 0) & (ids < table.shape[0])
            rows = table[jnp.where(mine, ids, 0)]
            x = step.all_reduce(jnp.where(mine[..., None], rows, jnp.zeros_like(rows)))
        if self.config.embed_scale is not None:
            x = x * jnp.asarray(self.config.embed_scale, x.dtype)
        return {"x": x}, state


class Head(Operator):
    """``x`` ``[b, t, hidden]`` to ``logits`` ``[b, t, vocab]`` float32, whole on every rank."""

    def __call__(self, tensors: Tensors, state: Tensors, step: Step) -> tuple[Tensors, Tensors]:
        x = self.normalize("norm", tensors["x"])
        logits = project_float32(x, self.weight("unembed"))
        if step.axis is not None:
            logits = jax.lax.all_gather(logits, step.axis, axis=2, tiled=True)
        return {"logits": softcap(logits, self.config.logit_softcap)}, state
