"""Slots: which request sits in which row, and what the devices must be told of it.

Pure host logic. Rows of a microbatch are set before an iteration only when a request joined or
left; otherwise the devices advance their own positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weavejax.runtime.batches import PrefillBatch, greedy_rows
from weavejax.runtime.cells import Cells
from weavejax.runtime.sampling import RowSampling
from weavejax.sequence import RunningSequence


class SlotTable:
    """The slots of one engine."""

    def __init__(self, cells: Cells, chunks: Sequence[int]):
        self.cells = cells
        self.chunks = tuple(sorted(chunks))
        total = cells.microbatches * cells.microbatch_rows
        self.occupants: list[RunningSequence | None] = [None] * total
        self._stale = set(range(cells.microbatches))
        # First one row in each cell, so that prompts of different cells prefill together.
        self._order = sorted(
            range(total),
            key=lambda slot: (cells.place(slot)[0], cells.place(slot)[2], cells.place(slot)[1]),
        )

    @property
    def running(self) -> list[RunningSequence]:
        return [sequence for sequence in self.occupants if sequence is not None]

    def admit(self, sequence: RunningSequence) -> bool:
        """Seat a request in a free slot; false when there is none."""
        for slot in self._order:
            if self.occupants[slot] is None:
                self.occupants[slot] = sequence
                sequence.slot = slot
                return True
        return False

    def release(self, sequence: RunningSequence) -> None:
        """Free a request's slot; the devices learn it before the next iteration."""
        if sequence.slot is not None:
            self.occupants[sequence.slot] = None
            self._stale.add(self.cells.place(sequence.slot)[0])
            sequence.slot = None

    def next_prefill(self) -> tuple[PrefillBatch, list[tuple[RunningSequence, int]]] | None:
        """The next chunk of prompts: the batch, and (request, cell) that finish.

        Counts the chunk as given to the devices.
        """
        waiting = [sequence for sequence in self.running if sequence.prefilling]
        if not waiting:
            return None
        first = min(waiting, key=lambda sequence: sequence.submitted_s)
        assert first.slot is not None
        microbatch = self.cells.place(first.slot)[0]
        chosen: dict[int, tuple[RunningSequence, int]] = {}
        for sequence in sorted(waiting, key=lambda sequence: sequence.submitted_s):
            assert sequence.slot is not None
            place, cell, row = self.cells.place(sequence.slot)
            if place == microbatch and cell not in chosen:
                chosen[cell] = (sequence, row)
        longest = max(len(s.inputs) - s.prefilled for s, _ in chosen.values())
        chunk = next((size for size in self.chunks if size >= longest), self.chunks[-1])
        return self._prefill_batch(microbatch, chosen, chunk)

    def _prefill_batch(
        self, microbatch: int, chosen: dict[int, tuple[RunningSequence, int]], chunk: int
    ) -> tuple[PrefillBatch, list[tuple[RunningSequence, int]]]:
        count = self.cells.count
        tokens = np.zeros((count, chunk), np.int32)
        starts, lengths, slots = (np.zeros(count, np.int32) for _ in range(3))
        done = np.zeros(count, bool)
        sampling = greedy_rows(count)
        finishing = []
        for cell, (sequence, row) in chosen.items():
            part = sequence.inputs[sequence.prefilled : sequence.prefilled + chunk]
            tokens[cell, : len(part)] = part
            starts[cell], lengths[cell], slots[cell] = sequence.prefilled, len(part), row
            _set_sampling(sampling, cell, sequence)
            sequence.prefilled += len(part)
            if not sequence.prefilling:
                done[cell] = True
                sequence.dispatched = len(sequence.kept) + 1
                finishing.append((sequence, cell))
                self._stale.add(microbatch)
        batch = PrefillBatch(
            microbatch=microbatch,
            tokens=tokens,
            starts=starts,
            lengths=lengths,
            slots=slots,
            done=done,
            sampling=sampling,
        )
        return batch, finishing

    def next_decode(self) -> dict[int, tuple[int, list[tuple[RunningSequence, int]]]]:
        """For each microbatch with work: its prefix and its (request, row) pairs."""
        work: dict[int, tuple[int, list[tuple[RunningSequence, int]]]] = {}
        for sequence in self.running:
            if sequence.decoding:
                assert sequence.slot is not None
                microbatch, row = divmod(sequence.slot, self.cells.microbatch_rows)
                prefix, rows = work.get(microbatch, (0, []))
                rows.append((sequence, row))
                work[microbatch] = (max(prefix, sequence.next_position + 1), rows)
        return work

    def take_stale(self, microbatch: int) -> bool:
        """Whether the devices' rows of a microbatch are out of date; asking marks them fresh."""
        stale = microbatch in self._stale
        self._stale.discard(microbatch)
        return stale

    def rows(self, microbatch: int) -> tuple[np.ndarray, np.ndarray, RowSampling]:
        """Starts, lengths and sampling of every row of a microbatch."""
        count = self.cells.microbatch_rows
        starts, lengths = np.zeros(count, np.int32), np.zeros(count, np.int32)
        sampling = greedy_rows(count)
        for row, sequence in enumerate(self.occupants[microbatch * count :][:count]):
            if sequence is not None and sequence.decoding:
                starts[row], lengths[row] = sequence.next_position, 1
                _set_sampling(sampling, row, sequence)
        return starts, lengths, sampling


def _set_sampling(sampling: RowSampling, row: int, sequence: RunningSequence) -> None:
    params = sequence.params
    top_k = min(params.top_k, np.iinfo(np.int32).max)  # more than any vocabulary: all
    values = (params.temperature, top_k, params.top_p, sequence.seed)
    for field, value in zip(sampling, values, strict=True):
        field[row] = value
