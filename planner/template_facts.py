"""A template laid over a model, as counts: how often each group runs each class of operator.

Operators of one class (kind and layer kind) cost the same everywhere, so the work of a group is
a product of counts and the class's times. Stage occurrences and interfaces are those of
:mod:`weavejax.schedule`; nothing here cuts a model itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from weavejax.merging import merge_occurrences
from weavejax.models.config import ModelConfig
from weavejax.models.costs import interface_bytes
from weavejax.models.sequence import operator_sequence
from weavejax.models.specs import OperatorSpec
from weavejax.plan import Template
from weavejax.planner.memory import DTYPE_BYTES, widest_interfaces
from weavejax.schedule import (
    StageOccurrence,
    boundary_interfaces,
    occurrence_operators,
    stage_occurrences,
)

Counts = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class OperatorTable:
    """The operators of a model and the classes they fall into."""

    config: ModelConfig
    operators: tuple[OperatorSpec, ...]
    representatives: tuple[OperatorSpec, ...]
    """The first operator of each class."""
    cumulative: Counts
    """``[operators + 1, classes]``: how many of each class precede an operator."""
    handed_bytes: Counts
    """``[operators]`` bytes per row that an operator reads of the one before it in the ring."""
    dtype_bytes: int = DTYPE_BYTES

    @property
    def num_classes(self) -> int:
        return len(self.representatives)


@lru_cache(maxsize=16)
def operator_table(config: ModelConfig, dtype_bytes: int = DTYPE_BYTES) -> OperatorTable:
    """Classes of a model's operators, in order of first use."""
    operators = operator_sequence(config)
    classes: dict[tuple[object, ...], int] = {}
    class_of = [classes.setdefault(op.signature, len(classes)) for op in operators]
    one_hot = np.zeros((len(operators) + 1, len(classes)), dtype=np.int64)
    one_hot[np.arange(1, len(operators) + 1), class_of] = 1
    handed = []
    for op, before in zip(operators, operators[-1:] + operators[:-1], strict=True):
        made = {tensor.name for tensor in before.outputs}
        handed.append(interface_bytes([t for t in op.inputs if t.name in made], dtype_bytes))
    return OperatorTable(
        handed_bytes=np.array(handed, dtype=np.int64),
        config=config,
        dtype_bytes=dtype_bytes,
        operators=operators,
        representatives=tuple(operators[class_of.index(c)] for c in range(len(classes))),
        cumulative=one_hot.cumsum(axis=0),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class TemplateFacts:
    """Stage occurrences of a template as numbers.

    The last two columns count program executions: those there always are, and those that one
    microbatch spares (:mod:`weavejax.merging`).
    """

    template: Template
    groups: int
    owners: NDArray[np.int64]
    """``[N]`` group of each stage occurrence."""
    stage_counts: Counts
    """``[N, classes + 2]`` operators of each class in each occurrence, and programs."""
    owner_counts: Counts
    """``[groups, classes + 2]`` the same, summed by owner."""
    pair_moves: Counts
    """``[groups, groups]`` boundaries from one group to another, the last one included."""
    least_pair_bytes: Counts
    """``[groups, groups]`` bytes per row that cross them at least: what the first operator of a
    stage reads of the operator just before it. The liveness rule may add more."""

    @cached_property
    def distinct_stages(self) -> tuple[NDArray[np.float64], ...]:
        """Of each group, the distinct rows of ``stage_counts`` among its occurrences."""
        return tuple(
            np.unique(self.stage_counts[self.owners == group], axis=0).astype(np.float64)
            for group in range(self.groups)
        )

    @property
    def crossings(self) -> int:
        """Boundaries between different groups."""
        return int(self.pair_moves.sum())


@lru_cache(maxsize=32_768)
def template_facts(
    config: ModelConfig, template: Template, groups: int, dtype_bytes: int = DTYPE_BYTES
) -> TemplateFacts:
    """Lay a template over a model.

    Examples:
        >>> from weavejax.models import preset_config
        >>> facts = template_facts(preset_config("llama-3.1-8b"), Template(cuts=(3,)), 2)
        >>> len(facts.owners), facts.crossings, facts.owner_counts[:, -2:].tolist()
        (64, 64, [[32, 0], [32, 0]])
        >>> template_facts(preset_config("llama-3.1-8b"), Template(), 1).owner_counts[:, -2:]
        array([[ 7, 25]])
    """
    table = operator_table(config, dtype_bytes)
    stages = stage_occurrences(template, config.num_layers, groups)
    starts = [0 if s.embed else s.start + 1 for s in stages]
    stops = [len(table.operators) if s.head else s.stop + 1 for s in stages]
    counts = np.zeros((len(stages), table.num_classes + 2), dtype=np.int64)
    counts[:, : table.num_classes] = table.cumulative[stops] - table.cumulative[starts]
    several, one = (
        _program_starts(stages, template.num_operators, microbatches) for microbatches in (2, 1)
    )
    counts[:, -2], counts[:, -1] = one, several - one
    owners = np.array([stage.owner for stage in stages], dtype=np.int64)
    by_owner = np.zeros((groups, counts.shape[1]), dtype=np.int64)
    np.add.at(by_owner, owners, counts)
    starts_next = np.roll(np.array(starts), -1)
    least_bytes = np.where(owners != np.roll(owners, -1), table.handed_bytes[starts_next], 0)
    return TemplateFacts(
        template=template,
        groups=groups,
        owners=owners,
        stage_counts=counts,
        owner_counts=by_owner,
        pair_moves=_by_pair(owners, groups, np.ones_like(owners)),
        least_pair_bytes=_by_pair(owners, groups, least_bytes),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class TemplateTraffic:
    """What crosses the boundaries of a laid-out template."""

    bytes_per_row: NDArray[np.int64]
    """``[N]`` interface of the boundary after each occurrence; 0 inside one group."""
    pair_bytes: NDArray[np.int64]
    """``[groups, groups]`` bytes per row over all of them."""
    buffer_bytes_per_row: NDArray[np.int64]
    """``[groups]`` largest interface received plus largest sent."""


@lru_cache(maxsize=32_768)
def template_traffic(
    config: ModelConfig, template: Template, groups: int, dtype_bytes: int = DTYPE_BYTES
) -> TemplateTraffic:
    """Interfaces of a template by the liveness rule, in bytes."""
    stages = stage_occurrences(template, config.num_layers, groups)
    operators = operator_sequence(config)
    owners = tuple(stage.owner for stage in stages)
    interfaces = boundary_interfaces(
        tuple(occurrence_operators(operators, stage) for stage in stages), owners
    )
    sizes = np.array([interface_bytes(tensors, dtype_bytes) for tensors in interfaces])
    source = np.array(owners)
    buffers = [widest_interfaces(interfaces, owners, group, dtype_bytes) for group in range(groups)]
    return TemplateTraffic(
        bytes_per_row=np.where(source != np.roll(source, -1), sizes, 0),
        pair_bytes=_by_pair(source, groups, sizes),
        buffer_bytes_per_row=np.array(buffers, dtype=np.int64),
    )


def _program_starts(
    stages: Sequence[StageOccurrence], block_operators: int, microbatches: int
) -> Counts:
    """``[N]`` 1 where a program begins."""
    starts = np.zeros(len(stages), dtype=np.int64)
    starts[[part[0].index for part in merge_occurrences(stages, block_operators, microbatches)]] = 1
    return starts


def _by_pair(owners: NDArray[np.int64], groups: int, values: NDArray[np.int64]) -> Counts:
    """Sum values of boundaries by (source, destination), those inside a group left out."""
    totals = np.zeros((groups, groups), dtype=np.int64)
    targets = np.roll(owners, -1)
    crossing = owners != targets
    np.add.at(totals, (owners[crossing], targets[crossing]), values[crossing])
    return totals
