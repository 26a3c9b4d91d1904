"""Between which assumptions the numbers of the paper lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weavejax.workbench.table import Table

BEYOND = "beyond every switch"
SAME = 0.01
"""Relative difference up to which two numbers agree: the paper rounds to three digits or two."""


def between(
    told: Mapping[str, Any], found: Sequence[Mapping[str, Any]], name: str = "switch"
) -> Table:
    """For every number of the paper: ours as described, and the nearest below and above it.

    Args:
        told: numbers of the paper by figure of merit; anything else is left out.
        found: ours under every assumption, the first one as described.
        name: the key of the assumption's name.

    Examples:
        >>> rows = [{"switch": "as described", "gain": 1.0}, {"switch": "TP 1", "gain": 2.0}]
        >>> between({"gain": 1.5}, rows).records[0]["verdict"]
        'between'
    """
    rows = []
    for merit, goal in told.items():
        if isinstance(goal, bool) or not isinstance(goal, (int, float)):
            continue
        ours = [(row[merit], row[name]) for row in found if row.get(merit) is not None]
        below = max((pair for pair in ours if pair[0] <= goal), key=_value, default=None)
        above = min((pair for pair in ours if pair[0] >= goal), key=_value, default=None)
        rows.append(
            {
                "figure of merit": merit,
                "paper": goal,
                "as described": found[0].get(merit),
                "nearest below": below and below[0],
                "switch below": below and below[1],
                "nearest above": above and above[0],
                "switch above": above and above[1],
                "verdict": _verdict(goal, [value for value, _ in ours]),
            }
        )
    return Table(records=tuple(rows))


def _value(pair: tuple[float, str]) -> float:
    return pair[0]


def _verdict(goal: float, ours: Sequence[float]) -> str:
    if any(abs(value - goal) <= SAME * abs(goal) for value in ours):
        return "reached"
    return "between" if ours and min(ours) < goal < max(ours) else BEYOND
