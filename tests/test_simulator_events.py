"""The event-level simulator plays the action list and agrees with the recurrence."""

import numpy as np
import pytest

from weavejax.models.config import LayerKind, ModelConfig
from weavejax.plan import DeviceGroup, ModelRef, Plan, Template, Workload
from weavejax.planner.round_trip import round_trip_time
from weavejax.planner.round_trip_batch import round_trip_times
from weavejax.planner.simulator import simulate_schedule
from weavejax.schedule import Receive, Run, Schedule, Send, StageOccurrence, build_schedule


def ring(owner, microbatches):
    """A schedule with any owners, in the order the real one has."""
    count = len(owner)
    actions = []
    for i, group in enumerate(owner):
        for mb in range(microbatches):
            if owner[i - 1] != group:
                actions.append((group, Receive((i - 1) % count, mb)))
            actions.append((group, Run(i, mb)))
            if owner[(i + 1) % count] != group:
                actions.append((group, Send(i, mb)))
    return Schedule(
        occurrences=tuple(
            StageOccurrence(
                index=i, position=i, owner=g, start=i, stop=i + 1, embed=i == 0, head=i == count - 1
            )
            for i, g in enumerate(owner)
        ),
        operators=((),) * count,
        interfaces=((),) * count,
        actions=tuple(actions),
        microbatches=microbatches,
    )


def tiny_model(layers=3):
    return ModelConfig(
        name="tiny",
        model_type="llama",
        vocab_size=64,
        hidden_size=32,
        layer_kinds=(LayerKind(attention="full"),) * layers,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        intermediate_size=64,
        max_position=128,
    )


def tiny_plan(template, groups, microbatches, config):
    return Plan(
        model=ModelRef(name=config.name, digest=config.digest, config=config.to_dict()),
        workload=Workload(context=16),
        template=template,
        groups=(DeviceGroup(device="cpu", resident_batch=12),) * groups,
        microbatches=microbatches,
    )


@pytest.mark.parametrize(
    ("compute", "move", "owner", "microbatches", "expected_s"),
    [
        ((3, 5), (1, 1), (0, 1), 1, 10),
        ((3, 5), (1, 1), (0, 1), 2, 10),
        ((3, 5), (1, 1), (0, 1), 3, 15),
        ((1, 2, 2), (0, 3, 6), (0, 1, 0), 3, 14.5),
        ((7, 4, 4, 7), (0, 7, 1, 4), (0, 1, 0, 1), 4, 48.5),
    ],
)
def test_known_values(compute, move, owner, microbatches, expected_s):
    simulation = simulate_schedule(ring(owner, microbatches), compute, move)
    assert simulation.round_trip_time_s == expected_s


def random_ring(rng, most_stages):
    count = int(rng.integers(1, most_stages + 1))
    groups = int(rng.integers(1, 4))
    owner = np.arange(count) % groups if rng.random() < 0.4 else rng.integers(0, groups, count)
    owner = np.unique(owner, return_inverse=True)[1]
    whole = rng.random() < 0.5
    compute = rng.integers(0, 8, count) if whole else rng.uniform(0, 1e-3, count)
    move = (rng.integers(0, 8, count) if whole else rng.uniform(0, 1e-3, count)) * (
        rng.random(count) < rng.choice([0.4, 1.0])
    )
    return compute.tolist(), move.tolist(), owner.tolist(), int(rng.integers(1, 5))


@pytest.mark.slow
def test_all_three_forms_agree_on_6000_chains():
    rng = np.random.default_rng(5)
    for index in range(6000):
        compute, move, owner, mu = random_ring(rng, 130 if index % 100 == 0 else 8)
        simulated = simulate_schedule(ring(owner, mu), compute, move).round_trip_time_s
        expected = round_trip_time(compute, move, owner, mu)
        [batched] = round_trip_times([compute], [move], owner, mu)
        for found in (simulated, batched):
            assert found == pytest.approx(expected, rel=1e-9, abs=1e-15), (compute, move, owner, mu)


def test_agrees_with_the_recurrence_on_a_sample():
    rng = np.random.default_rng(6)
    for _ in range(150):
        compute, move, owner, mu = random_ring(rng, 12)
        simulated = simulate_schedule(ring(owner, mu), compute, move).round_trip_time_s
        assert simulated == pytest.approx(round_trip_time(compute, move, owner, mu), rel=1e-9)


@pytest.mark.parametrize("template", [Template(cuts=(3,)), Template(cuts=(1,), offset=1)])
def test_spans_of_a_real_schedule(template):
    config = tiny_model()
    schedule = build_schedule(tiny_plan(template, 2, 3, config), config)
    count = len(schedule.owners)
    compute, move = [1.0 + 0.1 * i for i in range(count)], [0.25] * count
    simulation = simulate_schedule(schedule, compute, move, iterations=2)
    runs = [span for span in simulation.spans if span.kind == "compute"]
    assert len(runs) == 2 * 3 * count
    for group in (0, 1):
        mine = [span for span in runs if span.group == group]
        order = [(s.iteration, s.occurrence, s.microbatch) for s in mine]
        assert order == sorted(order)
        assert all(a.end_s <= b.start_s for a, b in zip(mine, mine[1:], strict=False))
    ends = {(s.iteration, s.occurrence, s.microbatch): s.end_s for s in runs}
    for span in simulation.spans:
        if span.kind == "send":
            assert span.start_s >= ends[span.iteration, span.occurrence, span.microbatch]
            assert span.duration_s == pytest.approx(0.25)
    sends = [s for s in simulation.spans if s.kind == "send"]
    receives = [s for s in simulation.spans if s.kind == "receive"]
    assert len(sends) == len(receives) > 0


def test_bubbles_are_what_compute_leaves():
    simulation = simulate_schedule(ring((0, 1), 2), (3, 5), (1, 1))
    assert simulation.busy_s == (6, 10)
    assert simulation.bubble_s == (4, 0)


def test_errors_say_what_was_got():
    with pytest.raises(ValueError, match="one entry per stage occurrence"):
        simulate_schedule(ring((0, 1), 1), (1,), (1,))
    with pytest.raises(ValueError, match="iterations must be at least 1, got 0"):
        simulate_schedule(ring((0, 1), 1), (1, 1), (1, 1), iterations=0)
