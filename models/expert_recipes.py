"""Experts: one tensor per expert, all in one, or in MXFP4 codes, to the packed layout.

Read one expert at a time, so that nothing near the size of all experts is held twice.
"""

from __future__ import annotations

from weavejax.models.mxfp4 import dequantize_mxfp4
from weavejax.models.recipe import Read, Recipe, Site

import numpy as np

_GPT_OSS = "gpt_oss"  # keeps matrices as [in, out], gate and up columns alternating


def experts_gate_up(site: Site) -> Recipe:
    """``[experts, hidden, 2, inner]``, gate first."""
    experts, hidden, _, inner = site.shape
    name = site.name("mlp.experts.gate_up_proj")
    if site.config.model_type == _GPT_OSS:
        return _stacked(site, name, (hidden, inner, 2), lambda a: a.swapaxes(1, 2))
    if name in site.names:
        return _fused(name, (experts, 2 * inner, hidden), (2, inner, hidden), (2, 0, 1))
    tensors = tuple(
        (site.name(f"mlp.experts.{expert}.{part}_proj.weight"), (inner, hidden))
        for expert in range(experts)
        for part in ("gate", "up")
    )

    def fill(read: Read, out: np.ndarray) -> None:
        for expert in range(experts):
            for part in range(2):
                out[expert, :, part] = read(2 * expert + part).T

    return Recipe(tensors=tensors, fill=fill)
