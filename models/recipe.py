"""A recipe: which checkpoint tensors make one parameter, and how they fill it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from weavejax.models.config import ModelConfig

Read = Callable[..., np.ndarray]
"""``read(position, index=None)``: tensor ``position`` of a recipe, or one entry of its axis 0."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One parameter: the tensors it is made of and how they fill it."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    """Hugging Face name and shape of each."""
    fill: Callable[[Read, np.ndarray], None] | None = None
    """Writes the packed parameter into an array of its declared shape; ``None``: the parameter is
    the one tensor, its axes cut into the declared ones."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """One parameter of one operator, as recipes see it."""

    config: ModelConfig
    layer: int | None
    shape: tuple[int, ...]
    """Of the packed parameter."""
    names: frozenset[str]
    """Tensors the checkpoint has: some weights come in more than one form."""

    def name(self, suffix: str) -> str:
        return f"model.layers.{self.layer}.{suffix}"


Make = Callable[[Site], Recipe]
_COLUMNS = 256


def copy(out: np.ndarray, view: np.ndarray) -> None:
    """``out[...] = view``, some columns at a time: a transposed copy is 3 times as fast then."""
    for start in range(0, out.shape[-1], _COLUMNS):
        out[..., start : start + _COLUMNS] = view[..., start : start + _COLUMNS]


def same(name: str, shape: tuple[int, ...]) -> Recipe:
    """One tensor as it is."""
    return Recipe(tensors=((name, shape),))


def one(name: str, shape: tuple[int, ...], view: Callable[[np.ndarray], np.ndarray]) -> Recipe:
    """One tensor, seen through ``view``."""
    return Recipe(tensors=((name, shape),), fill=lambda read, out: copy(out, view(read(0))))


def vector(suffix: str) -> Make:
    """A tensor kept as it is, its only axis cut into the declared ones."""
    return lambda site: same(site.name(suffix), (int(np.prod(site.shape)),))


def matrix(suffix: str) -> Make:
    """``[out, in]`` kept as it is, the input axis cut into the declared ones."""

    def make(site: Site) -> Recipe:
        outer, *inner = site.shape
        return same(site.name(suffix), (outer, int(np.prod(inner))))

    return make


def gate_up(module: str) -> Make:
    """``[2, inner, hidden]`` from a gate and an up projection."""

    def make(site: Site) -> Recipe:
        _, inner, hidden = site.shape
        parts = ("gate_proj", "up_proj")
        tensors = tuple((site.name(f"{module}.{p}.weight"), (inner, hidden)) for p in parts)

        def fill(read: Read, out: np.ndarray) -> None:
            for part in range(2):
                out[part] = read(part)

        return Recipe(tensors=tensors, fill=fill)

    return make


def whole(name: str, tied: str | None = None) -> Make:
    """A tensor of the whole model; ``tied`` stands in for it with tied embeddings."""

    def make(site: Site) -> Recipe:
        return same((tied if site.config.tie_embeddings else None) or name, site.shape)

    return make
