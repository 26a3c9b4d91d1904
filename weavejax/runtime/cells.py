"""Cells: the finest parts of a microbatch that no group splits.

Groups cut the rows of a microbatch into different numbers of parts (replicas, and the ranks of
attention data parallelism). Cut into the least common multiple of those numbers, every part of
every group is a run of whole cells. A prefill takes one row from each cell: its batch then
divides over every group exactly as the microbatch does, and no row leaves the replicas that hold
its caches.

With groups of 2 and 3 replicas and 12 rows, the 6 cells are::

    rows      0  1 | 2  3 | 4  5 | 6  7 | 8  9 | 10 11
    group 0   replica 0          | replica 1
    group 1   replica 0   | replica 1   | replica 2
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from weavejax.plan import Plan


@dataclass(frozen=True)
class Cells:
    """How the slots of a plan are cut."""

    count: int
    """Cells of a microbatch."""
    rows: int
    """Rows of a cell."""
    microbatches: int

    @property
    def microbatch_rows(self) -> int:
        return self.count * self.rows

    def place(self, slot: int) -> tuple[int, int, int]:
        """(microbatch, cell, row in the cell) of a slot of the engine."""
        microbatch, row = divmod(slot, self.microbatch_rows)
        cell, index = divmod(row, self.rows)
        return microbatch, cell, index


def plan_cells(plan: Plan) -> Cells:
    """The cells of a plan's microbatches.

    Examples:
        >>> from weavejax.plan import DeviceGroup, ModelRef, Template, Workload
        >>> plan = Plan(
        ...     model=ModelRef(name="m", digest="", config={}), workload=Workload(context=8),
        ...     template=Template(cuts=(3,)), groups=(
        ...         DeviceGroup(device="cpu", replicas=2, resident_batch=6),
        ...         DeviceGroup(device="cpu", replicas=3, resident_batch=4)))
        >>> plan_cells(plan)
        Cells(count=6, rows=2, microbatches=1)
    """
    ways = [group.replicas * group.attention_data_parallel for group in plan.groups]
    count = math.lcm(*ways)
    return Cells(count, plan.microbatch_rows // count, plan.microbatches)
