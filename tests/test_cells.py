"""Cells: the finest parts of a microbatch that no group splits."""

from __future__ import annotations

import math

from hypothesis import given
from strategies import architecture, plans

from weavejax.runtime.cells import Cells, plan_cells

CONFIG = architecture("llama-3.1-8b")


@given(plans(CONFIG))
def test_every_part_of_every_group_is_a_run_of_whole_cells(plan):
    cells = plan_cells(plan)
    assert cells.microbatch_rows == cells.count * cells.rows == plan.microbatch_rows
    assert cells.microbatches == plan.microbatches
    cell_of = [row // cells.rows for row in range(cells.microbatch_rows)]
    ways = [group.replicas * group.attention_data_parallel for group in plan.groups]
    for count in ways:
        size = cells.microbatch_rows // count
        parts = [set(cell_of[at : at + size]) for at in range(0, len(cell_of), size)]
        assert len(parts) == count
        # A cell that two parts shared would be counted twice.
        assert sum(map(len, parts)) == cells.count
        assert len({len(part) for part in parts}) == 1
    # Finest only as far as needed.
    assert cells.count == math.lcm(*ways)


@given(plans(CONFIG))
def test_places_are_the_slots_in_row_major_order(plan):
    cells = plan_cells(plan)
    places = [cells.place(slot) for slot in range(plan.batch)]
    assert places == [
        (microbatch, cell, row)
        for microbatch in range(cells.microbatches)
        for cell in range(cells.count)
        for row in range(cells.rows)
    ]


def test_two_and_three_replicas_of_twelve_rows():
    cells = Cells(count=6, rows=2, microbatches=1)
    assert [cells.place(slot)[1] for slot in range(12)] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
