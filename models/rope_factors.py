"""Llama 3's RoPE scaling recovered from the per-frequency factors that GGUF files carry."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weavejax.models.weights import CheckpointError

# What every published Llama 3 uses; only the overall factor differs between them.
_LOW, _HIGH, _ORIGINAL = 1.0, 4.0, 8192


def llama3_factors(*, theta: float, head_dim: int, factor: float) -> np.ndarray:
    """Divisors of the ``head_dim // 2`` frequencies.

    Long wavelengths are divided by ``factor``, short ones are kept, between them the two are
    blended.
    """
    wavelength = 2 * math.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    blend = np.clip((_ORIGINAL / wavelength - _LOW) / (_HIGH - _LOW), 0.0, 1.0)
    return 1.0 / ((1.0 - blend) / factor + blend)


def llama3_scaling(factors: np.ndarray, *, theta: float, head_dim: int) -> dict[str, Any]:
    """The ``rope_scaling`` of a config whose factors these are.

    Raises:
        CheckpointError: no Llama 3 scaling gives these factors.
    """
    factor = round(float(factors.max()), 3)  # the file has float32 quotients
    expected = llama3_factors(theta=theta, head_dim=head_dim, factor=factor)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise CheckpointError(
            f"rope_freqs.weight is not a Llama 3 scaling by {factor:g} of {_ORIGINAL} positions: "
            f"expected {np.round(expected, 3).tolist()}, got {np.round(factors, 3).tolist()}"
        )
    return dict(
        rope_type="llama3",
        factor=factor,
        low_freq_factor=_LOW,
        high_freq_factor=_HIGH,
        original_max_position_embeddings=_ORIGINAL,
    )
