"""What crosses the boundaries of a schedule: no less and no more than later stages read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import ARCHITECTURES, architecture, configs, templates

from weavejax.default_plans import TEMPLATES
from weavejax.models import operator_sequence
from weavejax.plan import Template
from weavejax.schedule import (
    boundary_interfaces,
    occurrence_operators,
    stage_occurrences,
)


@st.composite
def cut_models(draw):
    """(config, number of groups, template that fits)."""
    config, groups = draw(configs()), draw(st.integers(1, 3))
    return config, groups, draw(templates(groups, max_layers=min(3, config.num_layers)))


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
