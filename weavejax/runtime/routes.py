"""Routes: which part of which shard goes where when an array moves between shardings.

Pure geometry. An array is cut into boxes over the source's devices and into other boxes over the
destination's; a route lists, for every destination box, the pieces of source boxes that fill it.
Every element travels to a destination device exactly once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

Box = tuple[tuple[int, int], ...]
"""Half-open range along every axis."""


@dataclass(frozen=True)
class Piece:
    """Part of one source shard that lands in one destination shard."""

    source: int
    """Index of the source shard."""
    box: Box
    """In global coordinates."""
    slices: Box
    """The same box in the source shard's coordinates."""
    whole: bool
    """The piece is all of the source shard."""


@dataclass(frozen=True)
class Delivery:
    """What fills one destination shard: pieces in row-major order over a ``grid``."""

    pieces: tuple[Piece, ...]
    grid: tuple[int, ...]
    """Pieces along every axis."""


def find_route(
    sources: Sequence[tuple[object, Box]], destinations: Sequence[tuple[object, Box]]
) -> tuple[Delivery, ...]:
    """The deliveries to every destination shard, in order.

    Args:
        sources: (device, box) of every source shard; replicated boxes may repeat.
        destinations: (device, box) of every destination shard.

    Raises:
        ValueError: the sources do not cover a destination box.

    Examples:
        >>> rows = [("a0", ((0, 6),)), ("a1", ((6, 12),))]
        >>> to = [("b0", ((0, 4),)), ("b1", ((4, 8),)), ("b2", ((8, 12),))]
        >>> [[(p.source, p.box) for p in d.pieces] for d in find_route(rows, to)]
        [[(0, ((0, 4),))], [(0, ((4, 6),)), (1, ((6, 8),))], [(1, ((8, 12),))]]
    """
    holders: dict[Box, list[int]] = {}
    for index, (_, box) in enumerate(sources):
        holders.setdefault(box, []).append(index)
    deliveries = []
    for order, (device, target) in enumerate(destinations):
        found: dict[Box, int] = {}
        for box, indices in holders.items():
            common = _intersect(box, target)
            if common is not None:
                near = [index for index in indices if sources[index][0] == device]
                # replicated sources share the work
                found[common] = near[0] if near else indices[order % len(indices)]
        deliveries.append(_deliver(found, target, sources))
    return tuple(deliveries)


def _deliver(found: dict[Box, int], target: Box, sources: Sequence[tuple[object, Box]]) -> Delivery:
    axes = [sorted({box[axis] for box in found}) for axis in range(len(target))]
    cells = list(itertools.product(*axes))
    if (
        not found
        or sorted(cells) != sorted(found)
        or any(
            cuts[0][0] != low
            or cuts[-1][1] != high
            or any(left[1] != right[0] for left, right in itertools.pairwise(cuts))
            for cuts, (low, high) in zip(axes, target, strict=True)
        )
    ):
        raise ValueError(f"the sources must tile every destination box, got {target} from {found}")
    pieces = []
    for box in cells:
        index = found[box]
        origin = sources[index][1]
        slices = tuple(
            (low - start, high - start) for (low, high), (start, _) in zip(box, origin, strict=True)
        )
        pieces.append(Piece(index, box, slices, whole=box == origin))
    return Delivery(tuple(pieces), tuple(len(cuts) for cuts in axes))


def _intersect(a: Box, b: Box) -> Box | None:
    common = tuple(
        (max(low, start), min(high, stop)) for (low, high), (start, stop) in zip(a, b, strict=True)
    )
    return None if any(low >= high for low, high in common) else common
