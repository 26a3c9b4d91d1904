"""Stage bindings executed with names in place of arrays."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import ARCHITECTURES, architecture, configs, templates

from weavejax.default_plans import TEMPLATES, model_ref
from weavejax.models import operator_sequence
from weavejax.plan import DeviceGroup, Plan, Template, Workload
from weavejax.runtime.binding import bind_stages
from weavejax.schedule import Receive, Run, build_schedule


def bind(config, template, groups=1, microbatches=1, tensor_parallel=(1, 1, 1)):
    plan = Plan(
        model=model_ref(config),
        workload=Workload(context=32),
        template=template,
        groups=tuple(
            DeviceGroup(device="cpu", resident_batch=microbatches, tensor_parallel=ways)
            for ways in tensor_parallel[:groups]
        ),
        microbatches=microbatches,
    )
    schedule = build_schedule(plan, config)
    return schedule, bind_stages(plan, config, schedule)


@st.composite
def bound(draw):
    config, groups = draw(configs(max_layers=6)), draw(st.integers(1, 3))
    template = draw(templates(groups, max_layers=min(3, config.num_layers)))
    return bind(config, template, groups, draw(st.integers(1, 3)))


def names(tensors):
    return {tensor.name for tensor in tensors}


def execute(schedule, bindings):
    """What every (group, microbatch) holds after one iteration; reads are checked on the way.

    A binding runs where its first occurrence stands. It forgets once its sends are done, or at
    once when the next stage is its own group's.
    """
    held, flying, last = {}, {}, len(schedule.occurrences) - 1
    begins = {binding.index: binding for binding in bindings}
    ends = {binding.last: binding for binding in bindings}
    for m in range(schedule.microbatches):
        for group in set(schedule.owners):
            held[group, m] = set()
        held[schedule.owners[0], m].add("ids")
    for owner, action in schedule.actions:
        m = action.microbatch
        mine = held[owner, m]
        if isinstance(action, Run):
            stage = begins.get(action.stage)
            if stage is None:  # a part of the one before
                continue
            assert stage.owner == owner
            if stage.embed is not None:
                assert "ids" in mine
                mine |= names(stage.embed.outputs)
            assert names(stage.reads) <= mine
            computed = set(names(stage.reads))
            for op in stage.operators:
                assert names(op.inputs) <= computed
                computed |= names(op.outputs)
            assert names(stage.writes) <= computed
            mine |= names(stage.writes)
            if stage.head is not None:
                assert names(stage.head.inputs) <= mine
            if stage.last != last and schedule.owners[stage.last + 1] == owner:
                mine -= set(stage.forgets)
        elif action.boundary == last:
            continue  # the ids of the next iteration
        elif isinstance(action, Receive):
            mine |= flying.pop((action.boundary, m))
        else:
            crossing = names(schedule.interfaces[action.boundary])
            assert crossing <= mine
            flying[action.boundary, m] = crossing
            mine -= set(ends[action.boundary].forgets)
    assert not flying
    return held


@given(bound())
@settings(max_examples=80)
def test_no_stage_reads_what_its_group_lacks_and_nothing_is_left_over(case):
    schedule, bindings = case
    held = execute(schedule, bindings)
    first, last = schedule.owners[0], bindings[-1]
    for (group, _), left in held.items():
        expected = {"ids"} if group == first else set()
        if group == last.owner:
            # The last stage's tensors stand until the head has run; then the whole is dropped.
            expected |= set(last.forgets)
            assert names(last.head.inputs) <= set(last.forgets)
        assert left == expected


@given(bound())
@settings(max_examples=60)
def test_bindings_cover_the_schedule_and_write_only_what_is_used(case):
    schedule, bindings = case
    last_reader = {
        name: index
        for index, stage in enumerate(schedule.operators)
        for op in stage
        for name in names(op.inputs)
    }
    covered = [range(binding.index, binding.last + 1) for binding in bindings]
    assert [index for part in covered for index in part] == list(range(len(schedule.operators)))
    for binding, part in zip(bindings, covered, strict=True):
        assert {schedule.owners[index] for index in part} == {binding.owner}
        stage = [op for index in part for op in schedule.operators[index]]
        ops = (binding.embed, *binding.operators, binding.head)
        assert [op.name for op in ops if op is not None] == [op.name for op in stage]
        written, head_input = names(binding.writes), set()
        if binding.head is not None:
            head_input = names(binding.head.inputs)
        for op in binding.operators:
            for name in names(op.outputs):
                used = last_reader[name] > binding.last or name in head_input
                assert (name in written) == used
        assert len(written) == len(binding.writes)
        assert len(names(binding.reads)) == len(binding.reads)


def test_one_groups_consecutive_stages_become_one_program():
    def spans(template, groups, microbatches=1):
        _, bindings = bind(architecture("llama-3.1-8b", 12), template, groups, microbatches)
        return [(binding.index, binding.last) for binding in bindings]

    # Whole blocks join, as many as have twenty operators: five layers, two blocks of two layers.
    assert spans(Template(cuts=(1, 3)), 1) == [(0, 14), (15, 29), (30, 35)]
    assert spans(Template(cuts=(3,), layers=2), 1) == [(0, 3), (4, 7), (8, 11)]
    # A longer block is one program.
    assert spans(Template(cuts=(3,), layers=6), 1) == [(0, 1), (2, 3)]
    assert all(first == last for first, last in spans(Template(cuts=(3,)), 2))
    # Several microbatches take turns at every block.
    blocks = [(3 * layer, 3 * layer + 2) for layer in range(12)]
    assert spans(Template(cuts=(1, 3)), 1, microbatches=2) == blocks


def test_operators_carry_the_shapes_of_their_groups_parallelism():
    config = architecture("llama-3.1-8b")
    assert config.num_kv_heads < 8
    schedule, bindings = bind(config, TEMPLATES["cad"], 2, tensor_parallel=(1, 8))
    sequences = [operator_sequence(config, 1), operator_sequence(config, 8)]
    assert sequences[0] != sequences[1]
    for binding in bindings:
        for op in binding.operators:
            assert op is sequences[binding.owner][op.index + 1]
    assert bindings[0].embed is sequences[1][0] and bindings[-1].head is sequences[1][-1]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_only_full_attention_reads_a_cache_that_grows(name):
    config = architecture(name)
    _, bindings = bind(config, Template(cuts=(1, 2), offset=0), 3)
    for binding in bindings:
        kinds = {config.layer_kinds[op.layer].attention for op in binding.operators}
        core = any(op.kind == "attn_core" for op in binding.operators)
        assert binding.reads_context == (core and "full" in kinds)
