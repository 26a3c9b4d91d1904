"""Attention projections to the layout that tensor parallelism cuts: per key/value or key head."""

from __future__ import annotations

import numpy as np

from weavejax.models.config import LinearAttentionConfig
from weavejax.models.recipe import Make, Read, Recipe, Site, one


def qkv(kind: str) -> Make:
    """``[groups, packed, width, hidden]`` (weight) or ``[groups, packed, width]`` (bias).

    A group is a key/value head, repeated where there are more groups than those. ``packed`` is
    the group's query heads, their gates if the model has them, the key and the value.
    """

    def make(site: Site) -> Recipe:
        config = site.config
        groups, packed, width, *rest = site.shape
        heads, kv_heads = config.num_heads, config.num_kv_heads
        gates = 2 if config.attention_gate else 1
        per_group = heads // groups
        sizes = {"q": heads * gates * width, "k": kv_heads * width, "v": kv_heads * width}
        tensors = tuple(
            (site.name(f"self_attn.{part}_proj.{kind}"), (size, *rest))
            for part, size in sizes.items()
        )

        def fill(read: Read, out: np.ndarray) -> None:
            # The checkpoint keeps each head's query and gate side by side.
            query = read(0).reshape(groups, per_group, gates, width, *rest)
            for gate in range(gates):
                out[:, gate * per_group : (gate + 1) * per_group] = query[:, :, gate]
            del query
            for part in (1, 2):
                kv = read(part).reshape(kv_heads, width, *rest)
                for group in range(groups):
                    out[group, packed - 3 + part] = kv[group * kv_heads // groups]

        return Recipe(tensors=tensors, fill=fill)

    return make


def delta_in_proj(site: Site) -> Recipe:
    """``[key heads, q k v z b a, hidden]``: the checkpoint has them per key head already."""
    linear = _linear(site)
    keys, width, hidden = site.shape
    small = 2 * linear.num_value_heads // keys

    def fill(read: Read, out: np.ndarray) -> None:
        out[:, : width - small] = read(0).reshape(keys, width - small, hidden)
        out[:, width - small :] = read(1).reshape(keys, small, hidden)

    tensors = (
        (site.name("linear_attn.in_proj_qkvz.weight"), (keys * (width - small), hidden)),
        (site.name("linear_attn.in_proj_ba.weight"), (keys * small, hidden)),
    )
    return Recipe(tensors=tensors, fill=fill)


def delta_conv(site: Site) -> Recipe:
    """``[key heads, q k v, kernel]`` from all queries, then all keys, then all values."""
    linear = _linear(site)
    keys, _, kernel = site.shape
    cuts = [keys * linear.key_head_dim, 2 * keys * linear.key_head_dim]

    def view(array: np.ndarray) -> np.ndarray:
        parts = np.split(array[:, 0], cuts)
        return np.concatenate([part.reshape(keys, -1, kernel) for part in parts], axis=1)

    return one(site.name("linear_attn.conv1d.weight"), (linear.conv_channels, 1, kernel), view)


def _linear(site: Site) -> LinearAttentionConfig:
    assert site.config.linear is not None
    return site.config.linear
