"""Norms against transformers' modules and their definitions."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm, eager_attention_forward
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNorm, l2norm

from weavejax.models.norms import l2_norm, rms_norm, softcap

EPS = 0.05


def _values(*shape: int, scale: float = 1.0) -> np.ndarray:
    return scale * np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)


@pytest.mark.parametrize(
    ("module", "offset"), [(LlamaRMSNorm, 0.0), (Gemma3RMSNorm, 1.0), (Qwen3NextRMSNorm, 1.0)]
)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_rms_norm(module: Any, offset: float, scale: float) -> None:
    """Zero-centred or not; the epsilon counts where values are small."""
    x, weight = _values(3, 5, 24, scale=scale), _values(24)
    theirs = module(24, eps=EPS)
    with torch.no_grad():
        theirs.weight.copy_(torch.from_numpy(weight))
        expected = theirs(torch.from_numpy(x)).numpy()
    ours = rms_norm(jnp.asarray(x), jnp.asarray(weight), EPS, offset)
    np.testing.assert_allclose(ours, expected, rtol=2e-6, atol=1e-7)


def test_rms_norm_of_bfloat16_is_computed_in_float32() -> None:
    """Squares near 1e4 summed over 4096 values would lose most of them in bfloat16."""
    x = jnp.asarray(_values(4096, scale=100.0), jnp.bfloat16)
    ours = rms_norm(x, jnp.ones(4096, jnp.bfloat16), 1e-6)
    wide = np.asarray(x, np.float32)
    expected = wide / np.sqrt(np.mean(wide**2))
    assert ours.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(ours, np.float32), expected, rtol=2**-8)


@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_l2_norm(scale: float) -> None:
    x = _values(4, 16, scale=scale)
    expected = l2norm(torch.from_numpy(x), dim=-1, eps=1e-6).numpy()
    np.testing.assert_allclose(l2_norm(jnp.asarray(x)), expected, rtol=1e-5)
    assert np.isfinite(np.asarray(l2_norm(jnp.zeros(4)))).all()


def test_softcap() -> None:
    """The cap that transformers' attention of this family offers: before the mask."""
    x = _values(6, scale=20.0)
    np.testing.assert_allclose(softcap(jnp.asarray(x), 5.0), 5 * np.tanh(x / 5), rtol=1e-5)
    assert np.abs(softcap(jnp.asarray([-1e9, 1e9]), 5.0)).max() <= 5.0
    np.testing.assert_array_equal(softcap(jnp.asarray(x), None), x)
    module = torch.nn.Module()
    module.head_dim, module.num_key_value_groups = 1, 1  # type: ignore[assignment]
    scores = torch.from_numpy(x).reshape(1, 1, 1, 6)
    _, weights = eager_attention_forward(
        module,
        torch.ones(1, 1, 1, 1),
        scores.transpose(2, 3),
        torch.ones(1, 1, 6, 1),
        None,
        scaling=1.0,
        softcap=5.0,
    )
    ours = np.exp(np.asarray(softcap(jnp.asarray(x), 5.0)))
    np.testing.assert_allclose(ours / ours.sum(), weights[0, 0, 0].numpy(), rtol=1e-5)
