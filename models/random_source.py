"""Random weights of any architecture: for tests and benchmarks, without a checkpoint."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from weavejax.models.config import ModelConfig
from weavejax.models.packing import checkpoint_tensors
from weavejax.models.weights import require


class RandomSource:
    """A checkpoint whose tensors depend on ``seed`` and their name alone.

    Matrices keep the scale of what they multiply, norms are near one, so that activations stay
    finite at any depth and logits differ enough for greedy decoding to be well defined.
    """

    location = "random weights"

    def __init__(self, config: ModelConfig, *, seed: int = 0) -> None:
        self.seed = seed
        self._offset = config.norm_weight_offset
        self._shapes = checkpoint_tensors(config)
        self._names = frozenset(self._shapes)

    def names(self) -> frozenset[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[require(self, name)]

    def read(self, name: str, dtype: Any, index: int | None = None) -> np.ndarray:
        shape = self.shape(name)
        if len(shape) == 3 and not name.endswith("conv1d.weight"):  # stacked experts
            rows = range(shape[0]) if index is None else (index,)
            # These are [in, out]; every other matrix is [out, in].
            parts = [self._make(f"{name}.{row}", shape[1:], fan_in=shape[1]) for row in rows]
            return (np.stack(parts) if index is None else parts[0]).astype(dtype)
        array = self._make(name, shape, fan_in=shape[-1])
        return (array if index is None else array[index]).astype(dtype)

    def _make(self, name: str, shape: tuple[int, ...], *, fan_in: int) -> np.ndarray:
        digest = hashlib.sha256(name.encode()).digest()
        generator = np.random.default_rng([self.seed, int.from_bytes(digest[:8], "little")])
        noise = generator.standard_normal(shape, np.float32)
        if name.endswith("norm.weight"):
            # The delta net's gated norm has no offset in any architecture.
            centre = 1.0 if ".linear_attn." in name else 1.0 - self._offset
            return centre + 0.1 * noise
        if name.endswith("A_log"):  # decay rates over three orders of magnitude
            return np.log(generator.uniform(0.01, 16.0, shape)).astype(np.float32)
        if len(shape) == 1:  # biases, sinks, dt_bias
            return 0.2 * noise
        if name.endswith(("embed_tokens.weight", "lm_head.weight")):
            return noise * np.float32(2.0 * shape[-1] ** -0.5)
        return noise * np.float32(fan_in**-0.5)
