"""From timed walks to what operators and stages take."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import tiny_model

from weavejax.measure.calibrate import walked_lengths
from weavejax.measure.point import Point, Samples, solve_point
from weavejax.measure.profiling import add_point, has_point, only_point, start_profile
from weavejax.models.sequence import operator_sequence
from weavejax.plan import Parallelism
from weavejax.profiles.operator_key import operator_key


@given(
    st.floats(1e-6, 1e-3),
    st.floats(0, 1e-3),
    st.lists(st.floats(1e-3, 1e-2), min_size=4, max_size=4),
    st.floats(0.5, 1.0),
    st.integers(1, 4),
)
@settings(max_examples=40)
def test_samples_of_a_machine_without_noise_give_its_times_back(
    overhead, waiting, own, warm, microbatches
):
    layers, keys = 6, ["in", "core", "out", "ffn"]
    counts = [microbatches * -(-4 * layers // length) for length in walked_lengths(microbatches)]
    each = np.array([1.0, *[warm] * (microbatches - 1)])
    stages = np.array([own[place % 4] for place in range(4 * layers)])[:, None] * each
    embed, head = 0.5 * own[0] * each, 5 * own[3] * each
    total = stages.sum() + embed.sum() + head.sum()
    samples = Samples(walk_s=[[total + overhead * count] * 3 for count in counts])
    steps = np.concatenate([stages + overhead, head[None]]) + waiting
    steps[0] += embed
    samples.steps_s = [steps] * 3
    point = solve_point(samples, counts, keys * layers, ("embed", "head"))
    assert point.stage_overhead_s == pytest.approx(overhead, rel=1e-6, abs=1e-9)
    assert point.residual < 1e-6
    for key, seconds in zip(keys, own, strict=True):
        first, after = seconds + overhead, seconds * (warm if microbatches > 1 else 1) + overhead
        assert point.time_s[key] == pytest.approx((first, after), rel=0.2)

    def walked(key):
        first, after = point.time_s[key]
        return first + (microbatches - 1) * after

    # whatever is attributed to whom, a walk of single operators takes what it took
    attributed = sum(layers * walked(key) for key in keys) + walked("embed") + walked("head")
    assert attributed == pytest.approx(samples.walk_s[0][0], rel=1e-3)


def test_a_point_alone_keeps_its_own_overhead():
    model = tiny_model("llama-3.1-8b")
    keys = {operator_key(op, Parallelism()) for op in operator_sequence(model.config)}

    def point(overhead_s):
        return Point(
            time_s=dict.fromkeys(keys, (2e-3, 1e-3)),
            spread=dict.fromkeys(keys, 0.1),
            stage_overhead_s=overhead_s,
            residual=0.0,
        )

    data = start_profile(None, "cpu", "float32")
    for rows, overhead_s in ((2, 1e-4), (4, 3e-4)):
        data = add_point(data, "cpu", model, rows, 32, point(overhead_s))
    every = add_point(data, "cpu", model, 8, 32, point(5e-4)).devices["cpu"]
    alone = only_point(data, "cpu", model, 8, 32, point(5e-4)).devices["cpu"]
    assert (every.stage_overhead_s, alone.stage_overhead_s) == (3e-4, 5e-4)
    for rows, known in ((2, False), (4, False), (8, True)):
        assert has_point(alone, model, Parallelism(), rows, 32) == known
        assert has_point(every, model, Parallelism(), rows, 32)
