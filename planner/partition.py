"""Partition blocks, sub-blocks and the templates that cut them (paper section 4, design section 4).

A *block* is the smallest period of the model's layer kinds; the model is whole blocks and perhaps
a truncated one. A *sub-block* is a number of layers that divides the block: a template cuts one
sub-block and is tiled over the model. Cuts are cyclic: the template that starts ``offset``
operators after a layer boundary is the same set of places, counted from its first cut.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from weavejax.models.config import LayerKind, ModelConfig
from weavejax.models.specs import LAYER_OPERATORS
from weavejax.plan import Template
from weavejax.planner.report import PolicyError

OPERATORS_PER_LAYER = len(LAYER_OPERATORS)

MOST_TEMPLATES = 100_000
"""More would take minutes to lay over the model."""


@dataclass(frozen=True, kw_only=True)
class PartitionBlock:
    """The repeating pattern of a model.

    Examples:
        >>> from weavejax.models import preset_config
        >>> block = partition_block(preset_config("gemma-3-27b"))
        >>> block.layers, block.sub_blocks, block.whole_blocks, block.truncated_layers
        (6, (1, 2, 3, 6), 10, 2)
    """

    layer_kinds: tuple[LayerKind, ...]
    """Kinds of the block's layers."""
    model_layers: int
    allowed: tuple[int, ...] | None = None
    """Sub-blocks to use, in layers; ``None`` is every one that divides the block."""

    @property
    def layers(self) -> int:
        return len(self.layer_kinds)

    @property
    def num_operators(self) -> int:
        return OPERATORS_PER_LAYER * self.layers

    @property
    def sub_blocks(self) -> tuple[int, ...]:
        """Layer counts that divide the block, smallest first.

        Every layer has the same four operators in the same order, so each division preserves the
        high-level operator order; attention and feed-forward variants may differ.
        """
        return tuple(
            n
            for n in range(1, self.layers + 1)
            if self.layers % n == 0 and (self.allowed is None or n in self.allowed)
        )

    @property
    def whole_blocks(self) -> int:
        return self.model_layers // self.layers

    @property
    def truncated_layers(self) -> int:
        """Layers of the last, partial block; it keeps the leading part of the template."""
        return self.model_layers % self.layers


def partition_block(config: ModelConfig) -> PartitionBlock:
    """The block of smallest period p with kind[i] = kind[i + p] for every layer i."""
    kinds = config.layer_kinds
    for period in range(1, len(kinds) + 1):
        if kinds[period:] == kinds[:-period]:
            return PartitionBlock(layer_kinds=kinds[:period], model_layers=len(kinds))
    raise AssertionError("the whole model is a period of itself")


def legal_templates(
    block: PartitionBlock, groups: int, *, offsets: bool = True
) -> Iterator[Template]:
    """Every template of one stage per group and sub-block, smaller sub-blocks first.

    Args:
        block: what is cut.
        groups: K >= 1, the number of cuts of a sub-block seen as a ring.
        offsets: also templates whose ring of cuts leaves layer boundaries uncut.

    Raises:
        PolicyError: more templates than a search can try.

    Examples:
        >>> from weavejax.models import preset_config
        >>> block = partition_block(preset_config("llama-3.1-8b"))
        >>> [(t.offset, t.cuts) for t in legal_templates(block, 2, offsets=False)]
        [(0, (1,)), (0, (2,)), (0, (3,))]
        >>> len(list(legal_templates(block, 2)))
        6
    """
    count = sum(math.comb(OPERATORS_PER_LAYER * n, groups) for n in block.sub_blocks)
    if count > MOST_TEMPLATES:
        raise PolicyError(
            f"a search tries at most {MOST_TEMPLATES:,} templates of one number of groups, got "
            f"{count:,} for {groups} groups: the layers repeat only every {block.layers}. Lower "
            f"max_groups or set sub_blocks to some of {block.sub_blocks}"
        )
    for layers in block.sub_blocks:
        size = OPERATORS_PER_LAYER * layers
        for ring in itertools.combinations(range(size), groups):
            if ring[0] and not offsets:
                break
            cuts = tuple(cut - ring[0] for cut in ring[1:])
            yield Template(layers=layers, cuts=cuts, offset=ring[0])


def distinct_templates(
    block: PartitionBlock, groups: int, templates: Iterable[Template]
) -> tuple[Template, ...]:
    """Drop templates that cut the model in the same places for the same groups, in order.

    Two templates are one when their tilings give the same ring of cuts with the same owners, the
    names of the groups turned if need be: a smaller sub-block, another offset, or, for one group,
    any cuts at all. The first one stays.
    """
    seen: set[tuple[object, ...]] = set()
    kept = []
    for template in templates:
        key = _ring_key(block, groups, template)
        if key not in seen:
            seen.add(key)
            kept.append(template)
    return tuple(kept)


def _ring_key(block: PartitionBlock, groups: int, template: Template) -> tuple[object, ...]:
    if groups == 1:
        return ()
    if block.layers % template.layers:
        return (template,)
    size = template.num_operators
    ring = {
        (start + template.offset + cut) % block.num_operators: position % groups
        for start in range(0, block.num_operators, size)
        for position, cut in enumerate((0, *template.cuts))
    }
    places = sorted(ring)
    first_owner = ring[places[0]]
    return tuple((place, (ring[place] - first_owner) % groups) for place in places)
