"""Slots: the host's bookkeeping against devices that only know rows and positions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from weavejax.request import SamplingParams
from weavejax.runtime.batches import greedy_rows, idle_prefill
from weavejax.runtime.cells import Cells
from weavejax.sequence import RunningSequence
from weavejax.slots import SlotTable


def request(number, prompt_tokens, limit=4, **params):
    return RunningSequence(
        index=number,
        prompt=tuple(1000 * number + i + 1 for i in range(prompt_tokens)),
        params=SamplingParams(**params),
        limit=limit,
        end_ids=frozenset(),
        seed=number,
        decoder=None,
        submitted_s=float(number),
    )


class Devices:
    """What devices do: caches by row, and positions that advance by the rows' lengths.

    A cache row is a list of tokens; ``"sampled"`` stands for one the devices drew themselves.
    """

    def __init__(self, cells):
        rows = cells.microbatch_rows
        self.cells = cells
        self.caches = [[[] for _ in range(rows)] for _ in range(cells.microbatches)]
        self.starts = [np.zeros(rows, np.int32) for _ in range(cells.microbatches)]
        self.lengths = [np.zeros(rows, np.int32) for _ in range(cells.microbatches)]
        self.seeds = [np.zeros(rows, np.uint32) for _ in range(cells.microbatches)]

    def write(self, microbatch, row, position, token):
        cache = self.caches[microbatch][row]
        # A position is written after all before it, over what an earlier request left.
        assert position <= len(cache)
        cache[position:] = [token]

    def prefill(self, batch):
        for cell in range(self.cells.count):
            row = cell * self.cells.rows + int(batch.slots[cell])
            for i in range(int(batch.lengths[cell])):
                position = int(batch.starts[cell]) + i
                assert position < batch.prefix
                self.write(batch.microbatch, row, position, int(batch.tokens[cell, i]))

    def decode(self, microbatch, prefix):
        for row, length in enumerate(self.lengths[microbatch]):
            if length:
                position = int(self.starts[microbatch][row])
                assert position < prefix
                self.write(microbatch, row, position, "sampled")
        self.starts[microbatch] = self.starts[microbatch] + self.lengths[microbatch]


class SlotMachine(RuleBasedStateMachine):
    """Requests come, run, end early or are aborted, in any order, as an engine would drive it."""

    @initialize(
        count=st.integers(1, 3),
        rows=st.integers(1, 2),
        microbatches=st.integers(1, 2),
        chunks=st.sampled_from([(4,), (2, 5), (5, 2), (1, 3, 8)]),
    )
    def start(self, count, rows, microbatches, chunks):
        self.cells = Cells(count, rows, microbatches)
        self.table = SlotTable(self.cells, chunks)
        self.devices = Devices(self.cells)
        self.chunks = chunks
        self.requests = []
        self.prefilled = {}

    @rule(prompt_tokens=st.integers(1, 12), limit=st.integers(1, 5))
    def submit(self, prompt_tokens, limit):
        new = request(len(self.requests), prompt_tokens, limit)
        free = self.table.occupants.count(None)
        assert self.table.admit(new) == (free > 0)
        if free:
            assert self.table.occupants[new.slot] is new
            self.requests.append(new)
            self.prefilled[new.index] = []
        else:
            assert new.slot is None

    @rule()
    def prefill_everything(self):
        while True:
            waiting = [r for r in self.table.running if r.prefilling]
            before = {r.index: r.prefilled for r in waiting}
            work = self.table.next_prefill()
            assert (work is None) == (not waiting)
            if work is None:
                return
            batch, finishing = work
            assert batch.tokens.shape == (self.cells.count, batch.tokens.shape[1])
            assert batch.tokens.shape[1] in self.chunks
            moved = [r for r in waiting if r.prefilled > before[r.index]]
            # The one that waits longest moves; one a cell, each an oldest of its cell.
            assert min(waiting, key=lambda r: r.index) in moved
            assert len(moved) == (batch.lengths > 0).sum()
            for r in moved:
                microbatch, cell, row = self.cells.place(r.slot)
                assert (microbatch, row) == (batch.microbatch, batch.slots[cell])
                length = int(batch.lengths[cell])
                assert batch.starts[cell] == before[r.index] == len(self.prefilled[r.index])
                assert r.prefilled == before[r.index] + length
                self.prefilled[r.index] += batch.tokens[cell, :length].tolist()
                assert not batch.tokens[cell, length:].any()
                assert batch.done[cell] == (not r.prefilling)
                assert batch.sampling.seed[cell] == r.seed
                if batch.done[cell]:
                    assert (r, cell) in finishing and r.dispatched == 1
                older = [o for o in waiting if self.cells.place(o.slot)[:2] == (microbatch, cell)]
                assert r is min(older, key=lambda o: o.index)
            assert len(finishing) == batch.done.sum()
            self.devices.prefill(batch)
            for r, _ in finishing:
                self.release_when_all_is_on_its_way(r)

    @rule()
    def decode(self):
        work = self.table.next_decode()
        decoding = [r for r in self.table.running if r.decoding]
        assert sum(len(rows) for _, rows in work.values()) == len(decoding)
        for microbatch, (prefix, rows) in work.items():
            if self.table.take_stale(microbatch):
                starts, lengths, sampling = self.table.rows(microbatch)
                self.devices.starts[microbatch], self.devices.lengths[microbatch] = starts, lengths
                self.devices.seeds[microbatch] = sampling.seed
            assert not self.table.take_stale(microbatch)
            # What the devices hold, fresh or advanced by themselves, is what the host means.
            active = dict((row, r) for r, row in rows)
            for row in range(self.cells.microbatch_rows):
                assert self.devices.lengths[microbatch][row] == (row in active)
                if row in active:
                    r = active[row]
                    assert r.slot == microbatch * self.cells.microbatch_rows + row
                    assert self.devices.starts[microbatch][row] == r.next_position
                    assert self.devices.seeds[microbatch][row] == r.seed
            assert prefix == 1 + max(r.next_position for r, _ in rows)
            self.devices.decode(microbatch, prefix)
            for r, row in rows:
                # The row's cache is this request's prompt and its own tokens, and nothing else.
                cache = self.devices.caches[microbatch][row]
                assert cache == [*r.prompt, *["sampled"] * r.dispatched]
                r.dispatched += 1
                self.release_when_all_is_on_its_way(r)

    def release_when_all_is_on_its_way(self, r):
        assert r.dispatched <= r.limit
        if r.dispatched >= r.limit:
            self.table.release(r)

    @precondition(lambda self: self.table.running)
    @rule(data=st.data(), reason=st.sampled_from(["stop", "abort"]))
    def end(self, data, reason):
        r = data.draw(st.sampled_from(self.table.running))
        r.end(reason, 0.0)
        self.table.release(r)
        assert r.slot is None
        self.table.release(r)  # again changes nothing

    @invariant()
    def no_slot_is_booked_twice(self):
        running = self.table.running
        assert len({id(r) for r in running}) == len(running)
        assert all(self.table.occupants[r.slot] is r for r in running)
        assert all(r.slot is None for r in self.requests if r not in running)

    @invariant()
    def prompts_are_given_once_and_in_order(self):
        for r in self.requests:
            assert tuple(self.prefilled[r.index]) == r.prompt[: r.prefilled]


TestSlots = SlotMachine.TestCase
TestSlots.settings = settings(max_examples=40, stateful_step_count=30)


def test_prompts_of_different_cells_prefill_together():
    table = SlotTable(Cells(count=3, rows=2, microbatches=2), (4,))
    requests = [request(number, 3) for number in range(12)]
    assert all(table.admit(r) for r in requests) and not table.admit(request(12, 1))
    passes = []
    while (work := table.next_prefill()) is not None:
        passes.append((work[0].microbatch, [r.index for r, _ in work[1]]))
    assert passes == [(0, [0, 1, 2]), (0, [3, 4, 5]), (1, [6, 7, 8]), (1, [9, 10, 11])]


@pytest.mark.parametrize(
    ("prompt_tokens", "chunks"), [(1, [2]), (2, [2]), (3, [5]), (6, [5, 2]), (13, [5, 5, 5])]
)
def test_the_smallest_chunk_that_holds_the_rest_is_taken(prompt_tokens, chunks):
    table = SlotTable(Cells(1, 1, 1), (5, 2))
    table.admit(request(0, prompt_tokens))
    taken = []
    while (work := table.next_prefill()) is not None:
        taken.append(work[0].tokens.shape[1])
    assert taken == chunks


def test_rows_carry_their_requests_sampling_and_idle_rows_are_greedy():
    table = SlotTable(Cells(1, 3, 1), (4,))
    top_k = 2**40  # more than the devices' integers hold: as good as all
    table.admit(request(7, 2, temperature=0.5, top_k=top_k, top_p=0.25))
    batch, _ = table.next_prefill()
    _, lengths, sampling = table.rows(0)
    assert lengths.tolist() == [1, 0, 0]
    for got in (batch.sampling, sampling):
        assert (got.temperature[0], got.top_p[0], got.seed[0]) == (0.5, 0.25, 7)
        assert got.top_k[0] == 2**31 - 1
    idle = greedy_rows(3)
    for field, value in zip(sampling, idle, strict=True):
        assert field.dtype == value.dtype and np.array_equal(field[1:], value[1:])


def test_an_idle_pass_takes_no_row():
    batch = idle_prefill(microbatch=1, cells=3, chunk=8)
    assert batch.tokens.shape == (3, 8) and batch.microbatch == 1 and batch.prefix == 8
    assert not batch.lengths.any() and not batch.done.any()
