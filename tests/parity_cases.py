"""Tiny checkpoints in whose outputs every numeric detail of their family shows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import hf_tiny
import layer_parity
import numpy as np
import torch

from weavejax.models.loading import Model, load_model

TOLERANCE = 1e-4
"""Of an operator's outputs."""
LOGITS_TOLERANCE = 1e-3

# An epsilon that is seen beside activations near one, scales and caps away from their defaults;
# seeds whose greedy answers do not settle on one token.
_COMMON: dict[str, Any] = dict(rms_norm_eps=0.02)
_OVERRIDES: dict[str, dict[str, Any]] = {
    "llama": dict(seed=3, attention_bias=True),
    "qwen3": dict(
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        use_sliding_window=True,
        sliding_window=8,
    ),
    "gemma3_text": dict(seed=5, final_logit_softcapping=1.5),
    # A dense layer among the sparse ones.
    "qwen3_moe": dict(seed=5, num_hidden_layers=4, mlp_only_layers=[1], norm_topk_prob=False),
    "qwen3_next": dict(),
    "gpt_oss": dict(seed=1, swiglu_limit=1.0),
}


@dataclass(frozen=True)
class Case:
    """One checkpoint, read by both sides, and what transformers computes for ``tokens``."""

    model: Model
    theirs: Any
    tokens: np.ndarray
    expected: layer_parity.Expected
    directory: tempfile.TemporaryDirectory[str]
    """Removed when the process ends."""


@lru_cache
def parity_case(family: str, **overrides: Any) -> Case:
    """Two rows of 29 tokens: more than three windows."""
    return _case(family, lambda theirs: None, **overrides)


@lru_cache
def faint_keys_case() -> Case:
    """Qwen3-Next with queries and keys so small that the epsilon of their norm shows."""

    def fade(theirs: Any) -> None:
        for layer in theirs.model.layers[:3]:
            linear = layer.linear_attn
            linear.conv1d.weight[: 2 * linear.key_dim].mul_(1e-3)

    return _case("qwen3_next", fade)


def _case(family: str, change: Callable[[Any], None], **overrides: Any) -> Case:
    directory = tempfile.TemporaryDirectory()
    fields = {**_COMMON, **_OVERRIDES[family], **overrides}
    theirs = hf_tiny.hf_model(family, **fields)
    with torch.no_grad():
        change(theirs)
    theirs.save_pretrained(Path(directory.name))
    tokens = np.random.default_rng(0).integers(3, 320, (2, 29))
    expected = layer_parity.expected_values(theirs, tokens)
    return Case(load_model(directory.name), theirs, tokens, expected, directory)
