"""Which stage occurrences run as one program.

Consecutive occurrences of one group, which a plan of one group has, need not be programs of their
own: nothing crosses the boundary between them.
"""

from __future__ import annotations

from collections.abc import Sequence

from weavejax.schedule import StageOccurrence

MERGED = 20
"""Operators of one program at most, unless a block is longer: every program that follows another
costs the processor a tenth of a millisecond or more, and every operator makes compiling longer."""


def merge_occurrences(
    occurrences: Sequence[StageOccurrence], block_operators: int, microbatches: int
) -> list[list[StageOccurrence]]:
    """Occurrences as programs: whole blocks of one owner, of at most :data:`MERGED` operators.

    Only one microbatch is served by long programs. Several take turns at each block, so that the
    next one may find the weights in a cache.

    Args:
        occurrences: of the whole model.
        block_operators: of the template.
        microbatches: of the plan.

    Examples:
        >>> from weavejax.plan import Template
        >>> from weavejax.schedule import stage_occurrences
        >>> stages = stage_occurrences(Template(), num_layers=12, num_groups=1)
        >>> [len(part) for part in merge_occurrences(stages, 4, microbatches=1)]
        [5, 5, 2]
        >>> len(merge_occurrences(stages, 4, microbatches=2))
        12
    """
    blocks = 1 if microbatches > 1 else max(1, MERGED // block_operators)
    parts: list[list[StageOccurrence]] = []
    for occurrence in occurrences:
        part = parts[-1] if parts else None
        if (
            part is not None
            and part[-1].owner == occurrence.owner
            and occurrence.stop - part[0].start <= blocks * block_operators
        ):
            part.append(occurrence)
        else:
            parts.append([occurrence])
    return parts
