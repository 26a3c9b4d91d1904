"""The schedule: stage occurrences, the order of actions, and what crosses boundaries."""

from __future__ import annotations

import dataclasses
import re
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import ARCHITECTURES, architecture, configs, plans, templates

from weavejax.default_plans import TEMPLATES, default_plan, model_ref
from weavejax.models import operator_sequence, preset_config
from weavejax.plan import DeviceGroup, Plan, PlanError, Template, Workload
from weavejax.schedule import (
    Receive,
    Run,
    Send,
    boundary_interfaces,
    build_schedule,
    check_plan,
    occurrence_operators,
    stage_occurrences,
)


def plan_for(config, template, groups=1, microbatches=1, **group):
    one = DeviceGroup(**({"device": "cpu", "resident_batch": 2 * microbatches} | group))
    return Plan(
        model=model_ref(config),
        workload=Workload(context=32),
        template=template,
        groups=(one,) * groups,
        microbatches=microbatches,
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


# -- interfaces ------------------------------------------------------------------------------------


def brute_force_interfaces(stages, owners):
    """Walk the chain with what every group holds; at each boundary ask every tensor in turn."""
    holds = {owner: set() for owner in owners}
    crossing = []
    for boundary in range(len(stages) - 1):
        here, there = owners[boundary], owners[boundary + 1]
        holds[here] |= {t.name for op in stages[boundary] for t in op.outputs}
        names = set()
        for name in sorted(holds[here]):
            for later in range(boundary + 1, len(stages)):
                reads = {t.name for op in stages[later] for t in op.inputs}
                if name in reads and name not in holds[owners[later]]:
                    names.add(name)
        crossing.append(names)
        holds[there] |= names
    crossing.append({"ids"} if owners[-1] != owners[0] else set())
    return crossing


def walk(stages, owners, crossing):
    """Whether every operator finds its inputs and every move finds its tensors."""
    holds = {owner: set() for owner in owners}
    holds[owners[0]].add("ids")
    for index, stage in enumerate(stages):
        mine = holds[owners[index]]
        for op in stage:
            if not {t.name for t in op.inputs} <= mine:
                return False
            mine |= {t.name for t in op.outputs}
        if not crossing[index] <= mine:
            return False
        holds[owners[(index + 1) % len(stages)]] |= crossing[index]
    return "ids" in holds[owners[0]]


def stages_of(config, groups, template):
    occurrences = stage_occurrences(template, config.num_layers, groups)
    operators = operator_sequence(config)
    stages = tuple(occurrence_operators(operators, o) for o in occurrences)
    return stages, tuple(o.owner for o in occurrences)


@given(cut_models())
def test_interfaces_equal_brute_force_liveness(case):
    stages, owners = stages_of(*case)
    interfaces = boundary_interfaces(stages, owners)
    assert [{t.name for t in tensors} for tensors in interfaces] == brute_force_interfaces(
        stages, owners
    )
    produced = {t.name: t for stage in stages for op in stage for t in op.outputs}
    for tensors in interfaces:
        assert len({t.name for t in tensors}) == len(tensors)
        assert all(produced[t.name] == t for t in tensors)


@given(cut_models())
@settings(max_examples=40)
def test_interfaces_suffice_and_no_tensor_could_stay(case):
    stages, owners = stages_of(*case)
    crossing = [{t.name for t in tensors} for tensors in boundary_interfaces(stages, owners)]
    assert walk(stages, owners, crossing)
    for boundary, names in enumerate(crossing):
        for name in names - {"ids"}:
            without = [*crossing]
            without[boundary] = names - {name}
            assert not walk(stages, owners, without)


def names_across(name, template, groups=2):
    stages, owners = stages_of(architecture(name, 2), groups, template)
    return [{t.name for t in tensors} for tensors in boundary_interfaces(stages, owners)]


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("llama-3.1-8b", {"q", "k", "v"}),
        ("gemma-3-4b", {"q", "k", "v"}),
        ("gpt-oss-20b", {"q", "k", "v"}),
        ("qwen3-next-80b-a3b", {"qkv", "ba"}),
    ],
)
def test_cad_moves_projections_there_and_attention_back(name, there):
    # attn_in | attn_core | attn_out ffn attn_in | attn_core | attn_out ffn; the residual and the
    # output gate stay on the group that runs attn_out.
    assert names_across(name, TEMPLATES["cad"]) == [
        {f"{tensor}.0" for tensor in there},
        {"attn.0"},
        {f"{tensor}.1" for tensor in there},
        {"attn.1"},
        set(),
    ]


def test_afd_moves_the_residual_to_the_feed_forward_and_back():
    for name in ARCHITECTURES:
        assert names_across(name, TEMPLATES["afd"]) == [{"h.0"}, {"x.1"}, {"h.1"}, {"ids"}]


def test_a_tensor_is_relayed_through_a_group_that_does_not_read_it():
    # Three groups: attn_in | attn_core | attn_out ffn. The residual is read by attn_out.
    across = names_across("llama-3.1-8b", Template(cuts=(1, 2)), groups=3)
    assert across[:3] == [{"q.0", "k.0", "v.0", "x.0"}, {"attn.0", "x.0"}, {"x.1"}]
    gated = names_across("qwen3-next-80b-a3b", Template(cuts=(1, 2)), groups=3)
    assert gated[:3] == [{"qkv.0", "ba.0", "z.0", "x.0"}, {"attn.0", "z.0", "x.0"}, {"x.1"}]


# -- plans that do not fit -------------------------------------------------------------------------


def test_default_plans_fit_every_architecture():
    for name in ARCHITECTURES:
        config = architecture(name)
        for policy in TEMPLATES:
            check_plan(default_plan(config, policy), config)


def test_a_plan_for_another_model_is_refused():
    llama, gemma = architecture("llama-3.1-8b"), architecture("gemma-3-4b")
    plan = plan_for(llama, Template())
    message = (
        f"the plan is for model 'llama-3.1-8b-tiny' (architecture {llama.digest}), "
        f"got model 'gemma-3-4b-tiny' ({gemma.digest})"
    )
    with pytest.raises(PlanError, match="^" + re.escape(message) + "$"):
        build_schedule(plan, gemma)
    check_plan(plan, dataclasses.replace(llama, name="renamed"))  # the same architecture


def test_a_plan_for_the_tiny_model_or_the_whole_one_says_how_to_get_the_other():
    tiny, whole = architecture("gemma-3-4b"), preset_config("gemma-3-4b")
    with pytest.raises(PlanError, match=r"plan for the tiny model: .*plan gemma-3-4b --random-w"):
        check_plan(default_plan(whole), tiny)
    with pytest.raises(PlanError, match=r"run the tiny model: .*generate gemma-3-4b --random-w"):
        check_plan(default_plan(tiny), whole)


def test_a_template_longer_than_the_model_is_refused():
    config = architecture("llama-3.1-8b", 2)
    build_schedule(plan_for(config, Template(layers=2)), config)
    with pytest.raises(PlanError, match="^the template spans 3 layers, the model has 2$"):
        build_schedule(plan_for(config, Template(layers=3)), config)


def ways(count, **more):
    """All ``count`` devices of a replica attend for rows of their own."""
    return {
        "tensor_parallel": count,
        "attention_data_parallel": count,
        "resident_batch": count,
    } | more


def with_moe(config, **changes):
    return dataclasses.replace(config, moe=dataclasses.replace(config.moe, **changes))


@pytest.mark.parametrize(
    ("config", "group", "message"),
    [
        (
            architecture("llama-3.1-8b"),
            {"tensor_parallel": 3},
            "llama-3.1-8b-tiny: num_heads must divide over tensor-parallel ranks, "
            "got 8 heads for 3 ranks",
        ),
        (
            dataclasses.replace(architecture("llama-3.1-8b"), num_heads=12, num_kv_heads=4),
            {"tensor_parallel": 6},
            "llama-3.1-8b-tiny: key/value heads must divide over the ranks or the ranks over "
            "them, got 4 heads for 6 ranks",
        ),
        (
            dataclasses.replace(architecture("qwen3-next-80b-a3b"), num_heads=16),
            {"tensor_parallel": 16},
            "qwen3-next-80b-a3b-tiny: linear key heads must divide over tensor-parallel ranks, "
            "got 8 heads for 16 ranks",
        ),
        (
            architecture("llama-3.1-8b"),
            ways(3),
            "vocab_size must divide over tensor_parallel=3 devices, got 320",
        ),
        (
            architecture("llama-3.1-8b"),
            ways(5),
            "hidden_size must divide over tensor_parallel=5 devices, got 64",
        ),
        (
            architecture("llama-3.1-8b"),
            ways(64),
            "intermediate_size must divide over tensor_parallel=64 devices, got 96",
        ),
        (
            architecture("gpt-oss-20b"),
            ways(64),
            "moe intermediate_size must divide over tensor_parallel=64 devices, got 32",
        ),
        (
            architecture("gpt-oss-20b"),
            ways(16, expert_parallel=16),
            "num_experts must divide over tensor_parallel=16 devices, got 8",
        ),
        (
            with_moe(architecture("qwen3-next-80b-a3b"), shared_intermediate_size=20),
            ways(8),
            "shared_intermediate_size must divide over tensor_parallel=8 devices, got 20",
        ),
    ],
)
def test_heads_and_widths_that_do_not_divide_are_refused(config, group, message):
    with pytest.raises(PlanError, match="^" + re.escape(f"group 0: {message}") + "$"):
        build_schedule(plan_for(config, Template(), **group), config)


def test_the_group_that_does_not_fit_is_named():
    config = architecture("llama-3.1-8b")
    plan = plan_for(config, TEMPLATES["afd"], groups=2)
    odd = dataclasses.replace(plan.groups[1], tensor_parallel=3)
    with pytest.raises(PlanError, match="^group 1: .*got 8 heads for 3 ranks$"):
        check_plan(plan.replace(groups=(plan.groups[0], odd)), config)
