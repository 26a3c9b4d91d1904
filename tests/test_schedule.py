"""The schedule: stage occurrences and the order of actions."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st
from small_plans import plan_for
from strategies import ARCHITECTURES, architecture, configs, plans, templates

from weavejax.default_plans import TEMPLATES, model_ref
from weavejax.models import operator_sequence
from weavejax.plan import DeviceGroup, Template
from weavejax.schedule import (
    Receive,
    Run,
    Send,
    build_schedule,
    occurrence_operators,
    stage_occurrences,
)


@st.composite
def cut_models(draw):
    """(config, number of groups, template that fits)."""
    config, groups = draw(configs()), draw(st.integers(1, 3))
    return config, groups, draw(templates(groups, max_layers=min(3, config.num_layers)))


# -- occurrences -----------------------------------------------------------------------------------


@given(cut_models())
def test_occurrences_tile_the_model(case):
    config, groups, template = case
    occurrences = stage_occurrences(template, config.num_layers, groups)
    edges = [o.start for o in occurrences] + [occurrences[-1].stop]
    assert edges[0] == 0 and edges[-1] == 4 * config.num_layers
    assert all(low < high for low, high in zip(edges, edges[1:], strict=False))
    assert all(a.stop == b.start for a, b in zip(occurrences, occurrences[1:], strict=False))
    assert [o.index for o in occurrences] == list(range(len(occurrences)))
    assert [o.embed for o in occurrences] == [o.index == 0 for o in occurrences]
    assert [o.head for o in occurrences] == [o is occurrences[-1] for o in occurrences]

    # Which stage position an operator belongs to follows from its distance to a block's start.
    expected = [
        sum(cut <= (i - template.offset) % template.num_operators for cut in template.cuts)
        for i in range(4 * config.num_layers)
    ]
    got = [o.position for o in occurrences for _ in range(o.start, o.stop)]
    assert got == expected
    assert all(o.owner == o.position % groups for o in occurrences)
    assert {o.owner for o in occurrences} == set(range(groups))
    # Occurrences are as long as they can be.
    if template.cuts:
        pairs = zip(occurrences, occurrences[1:], strict=False)
        assert all(a.position != b.position for a, b in pairs)

    operators = operator_sequence(config)
    stages = [occurrence_operators(operators, o) for o in occurrences]
    assert [op for stage in stages for op in stage] == list(operators)


def test_a_truncated_last_block_keeps_the_leading_part():
    occurrences = stage_occurrences(Template(layers=2, cuts=(3, 5, 7)), num_layers=3, num_groups=2)
    assert [(o.position, o.owner, o.start, o.stop) for o in occurrences] == [
        (0, 0, 0, 3),
        (1, 1, 3, 5),
        (2, 0, 5, 7),
        (3, 1, 7, 8),
        (0, 0, 8, 11),
        (1, 1, 11, 12),
    ]


def test_operators_before_the_offset_belong_to_the_last_stage():
    occurrences = stage_occurrences(TEMPLATES["cad"], num_layers=2, num_groups=2)
    assert [(o.position, o.start, o.stop) for o in occurrences] == [
        (1, 0, 1),
        (0, 1, 2),
        (1, 2, 5),
        (0, 5, 6),
        (1, 6, 8),
    ]


# -- actions ---------------------------------------------------------------------------------------


@given(plans(), st.sampled_from(ARCHITECTURES), st.integers(3, 7))
@settings(max_examples=60)
def test_actions_run_everything_once_in_stage_major_order(plan, name, layers):
    config = architecture(name, layers)
    occurrences = stage_occurrences(plan.template, layers, len(plan.groups))
    # Sharding does not matter here, and not every drawn group divides this model.
    groups = (DeviceGroup(device="cpu", resident_batch=plan.microbatches),) * len(plan.groups)
    plan = plan.replace(model=model_ref(config), groups=groups)
    schedule = build_schedule(plan, config)
    assert schedule.occurrences == occurrences and schedule.microbatches == plan.microbatches
    assert schedule.owners == tuple(o.owner for o in occurrences)
    count = len(occurrences)

    runs = [(a.stage, a.microbatch) for _, a in schedule.actions if isinstance(a, Run)]
    assert runs == [(s, m) for s in range(count) for m in range(plan.microbatches)]
    assert all(
        owner == schedule.owners[a.stage] for owner, a in schedule.actions if isinstance(a, Run)
    )
    for boundary in range(count):
        source, destination = schedule.owners[boundary], schedule.owners[(boundary + 1) % count]
        sends, receives = (
            [
                (owner, a.microbatch)
                for owner, a in schedule.actions
                if isinstance(a, kind) and a.boundary == boundary
            ]
            for kind in (Send, Receive)
        )
        moves = range(plan.microbatches if source != destination else 0)
        assert sends == [(source, m) for m in moves]
        assert receives == [(destination, m) for m in moves]
        assert bool(schedule.interfaces[boundary]) == (source != destination)
    # A run stands between the receive that feeds it and the send that empties it.
    for group in range(len(groups)):
        ours = schedule.group_actions(group)
        for at, action in enumerate(ours):
            if isinstance(action, Receive):
                assert ours[at + 1] == Run((action.boundary + 1) % count, action.microbatch)
            elif isinstance(action, Send):
                assert ours[at - 1] == Run(action.boundary, action.microbatch)
    merged = sum(len(schedule.group_actions(g)) for g in range(len(groups)))
    assert merged == len(schedule.actions)


@given(cut_models(), st.integers(1, 4))
@settings(max_examples=40)
def test_groups_that_only_wait_for_each_other_finish(case, microbatches):
    config, groups, template = case
    schedule = build_schedule(plan_for(config, template, groups, microbatches), config)
    queues = [deque(schedule.group_actions(g) * 2) for g in range(groups)]  # two iterations
    last = len(schedule.occurrences) - 1
    arrived = {Send(last, m): 1 for m in range(microbatches)}  # the first token ids
    progress = True
    while progress:
        progress = False
        for queue in queues:
            while queue:
                action = queue[0]
                if isinstance(action, Receive):
                    key = Send(action.boundary, action.microbatch)
                    if not arrived.get(key):
                        break
                    arrived[key] -= 1
                elif isinstance(action, Send):
                    arrived[action] = arrived.get(action, 0) + 1
                queue.popleft()
                progress = True
    assert not any(queues)
    ring_moves = schedule.owners[0] != schedule.owners[-1]
    assert sum(arrived.values()) == microbatches
    assert ring_moves or all(key.boundary == last for key, left in arrived.items() if left)


def test_one_group_moves_nothing():
    config = architecture("gemma-3-4b")
    schedule = build_schedule(plan_for(config, Template(cuts=(1, 3)), microbatches=2), config)
    assert len(schedule.occurrences) == 3 * config.num_layers
    assert all(isinstance(action, Run) for _, action in schedule.actions)
    assert set(schedule.interfaces) == {()}
