"""Host arrays that set up a pass: rows of a prefill, sampling of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weavejax.runtime.sampling import RowSampling


@dataclass(frozen=True, kw_only=True)
class PrefillBatch:
    """One prefill pass over a microbatch: at most one row per cell, host arrays ``[cells]``."""

    microbatch: int
    tokens: np.ndarray
    """``[cells, chunk]`` int32, padded."""
    starts: np.ndarray
    """First position of the chunk."""
    lengths: np.ndarray
    """Real tokens of the chunk; 0 for cells that take no part."""
    slots: np.ndarray
    """Row inside the cell."""
    done: np.ndarray
    """Rows whose prompt ends in this chunk: their first token is sampled."""
    sampling: RowSampling

    @property
    def prefix(self) -> int:
        """Positions of the cache that the pass reads, padding included."""
        return int(self.starts.max()) + self.tokens.shape[1]


def idle_prefill(microbatch: int, cells: int, chunk: int) -> PrefillBatch:
    """A pass in which no row takes part."""
    zeros = np.zeros(cells, np.int32)
    return PrefillBatch(
        microbatch=microbatch,
        tokens=np.zeros((cells, chunk), np.int32),
        starts=zeros,
        lengths=zeros,
        slots=zeros,
        done=np.zeros(cells, bool),
        sampling=greedy_rows(cells),
    )


def greedy_rows(rows: int) -> RowSampling:
    """Host arrays that sample greedily."""
    return RowSampling(
        temperature=np.zeros(rows, np.float32),
        top_k=np.zeros(rows, np.int32),
        top_p=np.ones(rows, np.float32),
        seed=np.zeros(rows, np.uint32),
    )


def prefix_buckets(context: int, smallest: int = 128, largest: float = 1.0) -> tuple[int, ...]:
    """Prefix lengths attention is compiled for: doubling from ``smallest``, and the context.

    Args:
        context: positions of the cache.
        smallest: the first length.
        largest: part of the context that a length but the last may be.

    Examples:
        >>> prefix_buckets(600)
        (128, 256, 512, 600)
        >>> prefix_buckets(600, largest=0.75)
        (128, 256, 600)
    """
    sizes = [context]
    size = smallest
    while size < context and size <= largest * context:
        sizes.append(size)
        size *= 2
    return tuple(sorted(sizes))
