"""The base of all operators: a Flax NNX module whose parameters its spec declares."""

from __future__ import annotations

from collections.abc import Mapping

import jax
from flax import nnx

from weavejax.models.config import ModelConfig
from weavejax.models.norms import rms_norm
from weavejax.models.specs import OperatorSpec
from weavejax.models.step import Step

Array = jax.Array
Tensors = dict[str, Array]


class Operator(nnx.Module):
    """One operator of the sequence: tensors and state in, tensors and state out.

    Tensors are keyed by role, the part of their name before the layer (``x``, ``q``, ``attn``);
    every array is ``[b, t, ...]``. Arrays may be one rank's part: shapes come from the arrays,
    never from the config.
    """

    def __init__(self, spec: OperatorSpec, config: ModelConfig, params: Mapping[str, Array]):
        self.spec = spec
        self.config = config
        for param in spec.params:
            setattr(self, param.name, nnx.Param(params[param.name]))

    def weight(self, name: str) -> Array:
        """The array of one parameter."""
        return getattr(self, name)[...]

    def has(self, name: str) -> bool:
        """Whether the spec declares a parameter."""
        return any(param.name == name for param in self.spec.params)

    def normalize(self, name: str, x: Array) -> Array:
        """RMSNorm with this model's epsilon and weight offset."""
        return rms_norm(x, self.weight(name), self.config.norm_eps, self.config.norm_weight_offset)

    def residual(self, partial: Array, x: Array, step: Step, bias: str | None = None) -> Array:
        """Sum a projection over the ranks, add its bias once, normalise it and add ``x``."""
        y = step.all_reduce(partial)
        if bias is not None and self.has(bias):
            y = y + self.weight(bias)
        if self.has("post_norm"):
            y = self.normalize("post_norm", y)
        return x + y

    def __call__(self, tensors: Tensors, state: Tensors, step: Step) -> tuple[Tensors, Tensors]:
        """Compute.

        Args:
            tensors: the spec's inputs by role.
            state: the spec's caches by name.
            step: rows, positions and ranks.

        Returns:
            The outputs by role, and the state with this step's active tokens applied.
        """
        raise TypeError(f"{type(self).__name__} does not define what {self.spec.kind} computes")
