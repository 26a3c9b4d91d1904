"""Set-up arrays of a pass, and the prefix lengths attention is compiled for."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weavejax.runtime.batches import PrefillBatch, greedy_rows, prefix_buckets


@given(st.integers(1, 10**6), st.sampled_from((1, 16, 128)), st.sampled_from((0.5, 0.75, 1.0)))
def test_buckets_double_up_to_the_context(context, smallest, largest):
    buckets = prefix_buckets(context, smallest, largest)
    assert list(buckets) == sorted(set(buckets)) and buckets[-1] == context
    assert buckets[0] == (smallest if smallest <= largest * context else context)
    # No position costs more than twice what it needs, from the smallest bucket on, or at last
    # twice over what the largest may be.
    pairs = list(zip(buckets, buckets[1:], strict=False))
    assert all(high == 2 * low for low, high in pairs[:-1])
    assert all(low / largest <= high <= 2 * low / largest for low, high in pairs[-1:])


def test_the_prefix_of_a_pass_covers_its_positions():
    batch = PrefillBatch(
        microbatch=0,
        tokens=np.zeros((3, 4), np.int32),
        starts=np.array([8, 0, 5], np.int32),
        lengths=np.array([1, 4, 4], np.int32),
        slots=np.zeros(3, np.int32),
        done=np.zeros(3, bool),
        sampling=greedy_rows(3),
    )
    assert batch.prefix == 12  # padding too
