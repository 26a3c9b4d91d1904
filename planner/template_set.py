"""All templates of one K as arrays, with what each owner stores under each option."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weavejax.plan import Template
from weavejax.planner.space import Space
from weavejax.planner.template_facts import TemplateFacts, template_facts

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class TemplateSet:
    """T templates of K groups over H options; bytes are of one device."""

    groups: int
    facts: tuple[TemplateFacts, ...]
    counts: Array
    """``[T, K, classes + 2]`` operators of each class an owner runs, and its programs."""
    weight_bytes: Array
    """``[T, K, H]``"""
    slot_bytes: Array
    """``[T, K, H]`` cache of one slot a device holds."""
    working_bytes: Array
    """``[T, K, H]`` largest operator's buffers for one row of a microbatch."""
    kept_bytes: Array
    """``[T, K]`` largest inputs of one resident row."""
    crossings: NDArray[np.int64]
    """``[T]`` moves between groups per iteration and microbatch."""

    def __len__(self) -> int:
        return len(self.facts)


def build_template_set(space: Space, groups: int, templates: Sequence[Template]) -> TemplateSet:
    """Lay every template over the model and sum what its owners store."""
    width = space.table.dtype_bytes
    facts = tuple(template_facts(space.config, template, groups, width) for template in templates)
    counts = np.array([f.owner_counts for f in facts], dtype=np.float64)
    counts = counts.reshape(len(facts), groups, -1)
    operators = counts[:, :, : space.table.num_classes]
    owned = operators > 0
    costs = space.costs
    both_ends = owned[:, :, 0] & owned[:, :, -1]  # embed is the first class, head the last
    weights = operators @ costs.weight_bytes.T - both_ends[:, :, None] * costs.tied_bytes
    working = np.where(owned[:, :, None, :], costs.working_bytes, 0.0).max(axis=-1, initial=0.0)
    return TemplateSet(
        groups=groups,
        facts=facts,
        counts=counts,
        weight_bytes=weights,
        slot_bytes=operators @ costs.state_bytes.T,
        working_bytes=working,
        kept_bytes=np.where(owned, costs.kept_bytes, 0.0).max(axis=-1, initial=0.0),
        crossings=np.array([f.crossings for f in facts], dtype=np.int64),
    )
