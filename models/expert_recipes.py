"""Experts: one tensor each, all in one, or in MXFP4 codes, to the packed layout.

Whatever the form, one expert is read at a time, so that nothing near the size of all experts is
held twice.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from weavejax.models.mxfp4 import dequantize_mxfp4
from weavejax.models.recipe import Read, Recipe, Site, copy, one, same

Tensors = tuple[tuple[str, tuple[int, ...]], ...]
Expert = Callable[[Read, int], np.ndarray]


def router(part: str) -> Callable[[Site], Recipe]:
    """``router`` ``[experts, hidden]`` or ``router_bias`` ``[experts]``."""

    def make(site: Site) -> Recipe:
        module = "mlp.router" if _interleaved(site) else "mlp.gate"
        return same(site.name(f"{module}.{part}"), site.shape)

    return make


def experts_gate_up(site: Site) -> Recipe:
    """``[experts, hidden, 2, inner]``, gate first."""
    experts, hidden, _, inner = site.shape
    name = site.name("mlp.experts.gate_up_proj")
    if f"{name}_blocks" in site.names:
        return _experts(
            _codes(name, experts, 2 * inner, hidden),
            lambda read, e: _decode(read, e).reshape(inner, 2, hidden).transpose(2, 1, 0),
        )
    if _interleaved(site):
        return _experts(
            ((name, (experts, hidden, 2 * inner)),),
            lambda read, e: read(0, e).reshape(hidden, inner, 2).swapaxes(1, 2),
        )
    if name in site.names:
        return _experts(
            ((name, (experts, 2 * inner, hidden)),),
            lambda read, e: read(0, e).reshape(2, inner, hidden).transpose(2, 0, 1),
        )
    return _experts(
        tuple(
            (site.name(f"mlp.experts.{e}.{part}_proj.weight"), (inner, hidden))
            for e in range(experts)
            for part in ("gate", "up")
        ),
        lambda read, e: np.stack([read(2 * e), read(2 * e + 1)]).transpose(2, 0, 1),
    )


def experts_down(site: Site) -> Recipe:
    """``[experts, inner, hidden]``."""
    experts, inner, hidden = site.shape
    name = site.name("mlp.experts.down_proj")
    if f"{name}_blocks" in site.names:
        return _experts(_codes(name, experts, hidden, inner), lambda read, e: _decode(read, e).T)
    if _interleaved(site):
        return _experts(((name, site.shape),), lambda read, e: read(0, e))
    if name in site.names:
        return _experts(((name, (experts, hidden, inner)),), lambda read, e: read(0, e).T)
    return _experts(
        tuple(
            (site.name(f"mlp.experts.{e}.down_proj.weight"), (hidden, inner))
            for e in range(experts)
        ),
        lambda read, e: read(e).T,
    )


def experts_gate_up_bias(site: Site) -> Recipe:
    """``[experts, 2, inner]`` from alternating gate and up entries."""
    experts, _, inner = site.shape
    return one(
        site.name("mlp.experts.gate_up_proj_bias"),
        (experts, 2 * inner),
        lambda a: a.reshape(experts, inner, 2).swapaxes(1, 2),
    )


def experts_down_bias(site: Site) -> Recipe:
    """``[experts, hidden]``."""
    return same(site.name("mlp.experts.down_proj_bias"), site.shape)


def _interleaved(site: Site) -> bool:
    """GPT-OSS keeps matrices as [in, out] with gate and up columns alternating."""
    return site.config.model_type == "gpt_oss"


def _experts(tensors: Tensors, expert: Expert) -> Recipe:
    def fill(read: Read, out: np.ndarray) -> None:
        for index in range(len(out)):
            copy(out[index], expert(read, index))

    return Recipe(tensors=tensors, fill=fill)


def _codes(name: str, experts: int, outer: int, inner: int) -> Tensors:
    shape = (experts, outer, inner // 32)
    return ((f"{name}_blocks", (*shape, 16)), (f"{name}_scales", shape))


def _decode(read: Read, index: int) -> np.ndarray:
    return dequantize_mxfp4(read(0, index), read(1, index))
