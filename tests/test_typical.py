"""The interquartile mean."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weavejax.measure.typical import typical

timings = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=40)


@given(timings, st.floats(1e-3, 1e3), st.randoms())
def test_it_lies_between_the_quartiles_scales_and_knows_no_order(values, factor, random):
    found = float(typical(values))
    low, high = np.percentile(values, (25, 75), method="nearest")
    assert min(values) <= found * (1 + 1e-9) and found <= max(values) * (1 + 1e-9)
    if len(values) >= 8:
        assert low * (1 - 1e-9) <= found <= high * (1 + 1e-9)
    shuffled = random.sample(values, len(values))
    assert float(typical(np.array(shuffled) * factor)) == pytest.approx(found * factor)


@given(st.lists(st.floats(1, 2), min_size=8, max_size=40))
def test_a_quarter_of_stalls_changes_nothing(values):
    stalls = [1e6] * (len(values) // 4)
    kept = len(values) - len(stalls)
    assert 1 <= float(typical(values[:kept] + stalls)) <= 2


def test_every_column_has_its_own():
    table = np.array([[1.0, 10.0], [3.0, 30.0], [2.0, 20.0], [99.0, 0.0]])
    assert typical(table).tolist() == [2.5, 15.0]
