"""Which checkpoint tensors make a parameter, and how: one table for all architectures.

The table serves reading (:mod:`weavejax.models.packing`), checking a checkpoint before anything
is read, and random weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from weavejax.models.config import ModelConfig
from weavejax.models.specs import OperatorSpec, ParamSpec

Read = Callable[..., np.ndarray]
"""``read(position, index=None)``: tensor ``position`` of a recipe, or one entry of its axis 0."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One parameter: the tensors it is made of and how they fill it."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...]
    """Hugging Face name and shape of each."""
    fill: Callable[[Read, np.ndarray], None]
    """Writes the packed parameter into an array of its declared shape."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """One parameter of one operator, as the recipes see it."""

    config: ModelConfig
    layer: int | None
    shape: tuple[int, ...]
    names: frozenset[str]

    def name(self, suffix: str) -> str:
        return f"model.layers.{self.layer}.{suffix}"


def param_recipe(
    op: OperatorSpec, param: ParamSpec, config: ModelConfig, names: frozenset[str] = frozenset()
) -> Recipe:
    """How to make one parameter; ``names`` picks among the forms a checkpoint may have."""
    linear = op.layer_kind is not None and op.layer_kind.attention == "linear"
    key = f"{op.kind}.{param.name}"
    make = (_LINEAR.get(key) if linear else None) or _RECIPES[key]
    return make(Site(config=config, layer=op.layer, shape=param.shape, names=names))


Make = Callable[[Site], Recipe]


def _one(name: str, shape: tuple[int, ...], view: Callable[[np.ndarray], np.ndarray]) -> Recipe:
    def fill(read: Read, out: np.ndarray) -> None:
        out[...] = view(read(0))

    return Recipe(tensors=((name, shape),), fill=fill)


def _vector(suffix: str) -> Make:
    """A tensor kept as it is, up to cutting its only axis into the declared ones."""

    def make(site: Site) -> Recipe:
        size = int(np.prod(site.shape))
        return _one(site.name(suffix), (size,), lambda a: a.reshape(site.shape))

    return make


def _transposed(suffix: str) -> Make:
    """``[out, in]`` to ``[in, out]``, with the input axis cut into the declared leading ones."""

    def make(site: Site) -> Recipe:
        inner, outer = int(np.prod(site.shape[:-1])), site.shape[-1]
        return _one(site.name(suffix), (outer, inner), lambda a: a.T.reshape(site.shape))

    return make


def _gate_up(prefix: str) -> Make:
    def make(site: Site) -> Recipe:
        hidden, _, inner = site.shape
        parts = ("gate_proj", "up_proj")
        tensors = tuple((site.name(f"{prefix}.{p}.weight"), (inner, hidden)) for p in parts)

        def fill(read: Read, out: np.ndarray) -> None:
            for part in range(2):
                out[:, part] = read(part).T

        return Recipe(tensors=tensors, fill=fill)

    return make


def _whole(*candidates: str) -> Make:
    """A tensor of the whole model, the first of ``candidates`` that the config allows."""

    def make(site: Site) -> Recipe:
        tied = site.config.tie_embeddings
        name = candidates[-1] if tied else candidates[0]
        return _one(name, site.shape, lambda a: a)

    return make


def _qkv(kind: str) -> Make:
    """Queries (and gates), key and value of every key/value head side by side."""

    def make(site: Site) -> Recipe:
        config = site.config
        *lead, groups, packed, width = site.shape
        heads, kv_heads = config.num_heads, config.num_kv_heads
        gates = 2 if config.attention_gate else 1
        rest = (config.hidden_size,) if lead else ()
        sizes = {"q": heads * gates * width, "k": kv_heads * width, "v": kv_heads * width}
        tensors = tuple(
            (site.name(f"self_attn.{part}_proj.{kind}"), (size, *rest))
            for part, size in sizes.items()
        )

        def fill(read: Read, out: np.ndarray) -> None:
            target = np.moveaxis(out, 0, -1) if lead else out  # [groups, packed, width, hidden?]
            # A checkpoint keeps each head's query and gate together.
            query = read(0).reshape(groups, heads // groups, gates, width, *rest)
            per_group = heads // groups
            for gate in range(gates):
                target[:, gate * per_group : (gate + 1) * per_group] = query[:, :, gate]
            del query
            for part, place in ((1, packed - 2), (2, packed - 1)):
                kv = read(part).reshape(kv_heads, width, *rest)
                target[:, place] = np.repeat(kv, groups // kv_heads, axis=0)

        return Recipe(tensors=tensors, fill=fill)

    return make


def _in_proj(site: Site) -> Recipe:
    """Delta net: queries, keys, values, z, b and a, per key head as in the checkpoint."""
    linear = site.config.linear
    assert linear is not None
    hidden, keys, width = site.shape
    small = 2 * linear.num_value_heads // keys

    def fill(read: Read, out: np.ndarray) -> None:
        target = np.moveaxis(out, 0, -1)
        target[:, : width - small] = read(0).reshape(keys, width - small, hidden)
        target[:, width - small :] = read(1).reshape(keys, small, hidden)

    tensors = (
        (site.name("linear_attn.in_proj_qkvz.weight"), (keys * (width - small), hidden)),
        (site.name("linear_attn.in_proj_ba.weight"), (keys * small, hidden)),
    )
    return Recipe(tensors=tensors, fill=fill)


def _conv(site: Site) -> Recipe:
    """Channels from all queries, all keys, all values to the three side by side per key head."""
    linear = site.config.linear
    assert linear is not None
    keys, _, kernel = site.shape
    dk = linear.key_head_dim

    def view(array: np.ndarray) -> np.ndarray:
        parts = np.split(array[:, 0], [keys * dk, 2 * keys * dk])
        return np.concatenate([part.reshape(keys, -1, kernel) for part in parts], axis=1)

    return _one(site.name("linear_attn.conv1d.weight"), (linear.conv_channels, 1, kernel), view)
