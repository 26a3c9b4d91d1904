"""What an engine asks of whatever executes its passes, in this process or in many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from weavejax.plan import Plan
from weavejax.runtime.batches import PrefillBatch
from weavejax.runtime.cells import Cells
from weavejax.runtime.sampling import RowSampling


class Rows(Protocol):
    """Values of rows that may still be computed: a device array, or rows from a worker.

    ``numpy.asarray`` waits for them.
    """

    def copy_to_host_async(self) -> Any:
        """Begin to fetch the values."""
        ...


class CompiledPrograms(Protocol):
    """Programs an executor uses."""

    @property
    def compiled(self) -> int:
        """How many have been compiled."""
        ...


class PassExecutor(Protocol):
    """Executes prefill passes and decode iterations of one plan, in the order asked for."""

    plan: Plan
    cells: Cells
    chunks: tuple[int, ...]

    @property
    def programs(self) -> CompiledPrograms: ...

    def set_rows(
        self, microbatch: int, starts: np.ndarray, lengths: np.ndarray, sampling: RowSampling
    ) -> None:
        """Set position, activity and sampling of a microbatch's rows before the next pass."""
        ...

    def prefill(self, batch: PrefillBatch) -> tuple[Rows, Rows] | None:
        """Run one chunk of prompts; ids and log-probabilities when a prompt ends in it."""
        ...

    def decode(self, prefixes: dict[int, int]) -> Mapping[int, tuple[Rows, Rows]]:
        """Run one iteration; ids and log-probabilities of each microbatch."""
        ...

    def recover(self, failure: BaseException) -> bool:
        """Become usable again after a failure, with empty caches and idle rows, if it can."""
        ...

    def close(self) -> None:
        """Let go of processes and devices."""
        ...
