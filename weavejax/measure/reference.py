"""Logits of Hugging Face transformers for the same weights, where it is installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np

from weavejax.models.loading import Model
from weavejax.models.presets import preset_config, preset_hf_config, preset_names
from weavejax.models.weights import PackedSource


def transformers_logits(model: Model, tokens: np.ndarray) -> tuple[np.ndarray | None, str]:
    """What transformers computes along given tokens, in float32.

    Args:
        model: one from a Hugging Face directory, or a preset whatever its weights come from.
        tokens: ``[slots, length]``.

    Returns:
        ``[slots, length, vocab]`` float32, or ``None``, and a line that says where they come from
        or why there are none.
    """
    if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")):
        return None, "transformers and torch are not installed: not compared with them"
    theirs = transformers_model(model)
    if theirs is None:
        return None, f"transformers has no config for {model.config.name}: not compared with it"
    import torch

    with torch.no_grad():
        rows = [theirs(torch.tensor(row[None].astype(np.int64))).logits[0] for row in tokens]
    return np.stack([row.numpy() for row in rows]).astype(np.float32), "transformers, float32"


def transformers_model(model: Model) -> Any:
    """The float32 module of transformers with the same weights; ``None`` if it has no config."""
    import torch
    import transformers

    if isinstance(model.source, PackedSource):
        return None
    directory = Path(model.source.location)
    if (directory / "config.json").exists():
        return transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32
        ).eval()
    name = model.config.name
    if name not in preset_names() or preset_config(name).digest != model.config.digest:
        return None
    fields = json.loads(json.dumps(preset_hf_config(name)))
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    theirs = transformers.AutoModelForCausalLM.from_config(config).float()
    weights = {key: torch.tensor(model.source.read(key, "float32")) for key in model.source.names()}
    missing, unexpected = theirs.load_state_dict(weights, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ValueError(
            f"transformers names the weights of {name} otherwise: missing {missing[:3]}, "
            f"unexpected {unexpected[:3]}"
        )
    theirs.tie_weights()
    return theirs.eval()
