"""Partition blocks, templates and policies."""

import dataclasses
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weavejax.models import preset_config
from weavejax.models.config import LayerKind
from weavejax.plan import Template
from weavejax.planner import policies
from weavejax.planner.partition import (
    PartitionBlock,
    distinct_templates,
    legal_templates,
    partition_block,
)
from weavejax.planner.policies import (
    policy_named,
    policy_names,
    policy_templates,
    register_policy,
)
from weavejax.planner.report import PolicyError
from weavejax.schedule import stage_occurrences

FULL, SLIDING = LayerKind(attention="full"), LayerKind(attention="sliding")


def block_of(layers, model_layers=None):
    kinds = (SLIDING,) * (layers - 1) + (FULL,)
    return PartitionBlock(layer_kinds=kinds, model_layers=model_layers or 2 * layers)


@pytest.mark.parametrize(
    ("name", "layers", "whole", "truncated"),
    [
        ("gemma-3-27b", 6, 10, 2),
        ("qwen3-next-80b-a3b", 4, 12, 0),
        ("gpt-oss-120b", 2, 18, 0),
        ("llama-3.1-8b", 1, 32, 0),
    ],
)
def test_blocks_of_presets(name, layers, whole, truncated):
    block = partition_block(preset_config(name))
    assert (block.layers, block.whole_blocks, block.truncated_layers) == (layers, whole, truncated)


@given(st.lists(st.sampled_from([FULL, SLIDING]), min_size=1, max_size=12))
def test_block_is_the_smallest_period(kinds):
    base = dataclasses.replace(preset_config("gemma-3-1b"), layer_kinds=tuple(kinds))
    period = partition_block(base).layers
    count = len(kinds)
    holds = [all(kinds[i] == kinds[i + p] for i in range(count - p)) for p in range(1, count + 1)]
    assert period == holds.index(True) + 1


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_template_counts_are_binomial(groups):
    block = block_of(6)
    at_zero = list(legal_templates(block, groups, offsets=False))
    assert len(at_zero) == sum(math.comb(4 * n - 1, groups - 1) for n in (1, 2, 3, 6))
    everywhere = list(legal_templates(block, groups))
    assert len(everywhere) == sum(math.comb(4 * n, groups) for n in (1, 2, 3, 6))
    assert set(at_zero) <= set(everywhere)


def test_allowed_sub_blocks_and_the_most_templates():
    block = dataclasses.replace(block_of(6), allowed=(1, 3))
    assert block.sub_blocks == (1, 3)
    assert {template.layers for template in legal_templates(block, 2)} == {1, 3}
    with pytest.raises(ValueError, match=r"at most 100,000 templates .* got 280,840 for 3 groups"):
        list(legal_templates(dataclasses.replace(block_of(30), allowed=(30,)), 3))


def _owners(template, layers, groups):
    owners = [0] * (4 * layers)
    for stage in stage_occurrences(template, layers, groups):
        owners[stage.start : stage.stop] = [stage.owner] * (stage.stop - stage.start)
    return owners


@pytest.mark.parametrize("groups", [2, 3])
def test_no_two_templates_give_one_assignment(groups):
    """Operators of the model to groups, up to the names of the groups: all different."""
    block = block_of(2, 6)
    seen = set()
    for template in legal_templates(block, groups):
        owners = _owners(template, 6, groups)
        names = {owner: index for index, owner in enumerate(dict.fromkeys(owners))}
        key = tuple(names[owner] for owner in owners)
        assert key not in seen, template
        seen.add(key)


@settings(max_examples=200)
@given(st.data())
def test_turned_and_tiled_templates_are_dropped(data):
    block = block_of(4, 12)
    layers = data.draw(st.sampled_from([1, 2, 4]))
    groups = data.draw(st.integers(2, 3))
    ring = sorted(
        data.draw(
            st.lists(st.integers(0, 4 * layers - 1), min_size=groups, max_size=groups, unique=True)
        )
    )
    first = Template(layers=layers, cuts=tuple(c - ring[0] for c in ring[1:]), offset=ring[0])
    if ring[0] == 0:  # a cut at the layer boundary may be counted from the next one instead
        start = ring[1]
        turned = Template(
            layers=layers,
            cuts=tuple(sorted((c - start) % (4 * layers) for c in ring if c != start)),
            offset=start,
        )
        assert distinct_templates(block, groups, [first, turned]) == (first,)
    if layers < 4:
        tiled = Template(
            layers=2 * layers,
            cuts=tuple(
                4 * layers * tile + cut - ring[0]
                for tile in (0, 1)
                for cut in ring
                if (tile, cut) != (0, ring[0])
            ),
            offset=ring[0],
        )
        assert distinct_templates(block, groups, [first, tiled]) == (first,)


def test_weave_holds_the_other_policies():
    for block in (block_of(1), block_of(2), block_of(6)):
        for name, groups in (("colocated", 1), ("afd", 2), ("cad", 2)):
            (template,) = policy_templates(name, block, groups)
            assert template in policy_templates("weave", block, groups)


def test_afd_and_cad_cut_where_they_say():
    (afd,) = policy_templates("afd", block_of(1), 2)
    (cad,) = policy_templates("cad", block_of(1), 2)
    assert _owners(afd, 2, 2) == [0, 0, 0, 1] * 2
    assert _owners(cad, 2, 2) == [1, 0, 1, 1] * 2


def test_fixed_policies_offer_nothing_for_other_group_counts():
    assert policy_templates("afd", block_of(1), 3) == ()
    assert policy_templates("colocated", block_of(1), 2) == ()


@pytest.fixture
def fresh_registry(monkeypatch):
    monkeypatch.setattr(policies, "_POLICIES", dict(policies._POLICIES))


def test_policies_can_be_registered(fresh_registry):
    @register_policy("late-cut")
    def late_cut(block, groups):
        return [Template(layers=block.layers, cuts=(block.num_operators - 1,))] * 2

    assert "late-cut" in policy_names()
    assert policy_templates("late-cut", block_of(2), 2) == (Template(layers=2, cuts=(7,)),)
    assert register_policy("late-cut")(late_cut) is late_cut  # once more is harmless
    place = rf"'late-cut' is registered already at {re.escape(__file__)}:\d+; choose"
    with pytest.raises(ValueError, match=place):
        register_policy("late-cut")(lambda block, groups: [])
    with pytest.raises(PolicyError, match=r"multiple of the 3 groups, got 2"):
        policy_templates("late-cut", block_of(2), 3)
    with pytest.raises(PolicyError, match=r"for K=2: a template may span the model's 1 layers at"):
        policy_templates("late-cut", block_of(2, 1), 2)


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "a/b", "../a", "-a", "a.json", "a.py", "a,b", ".a"]
)
def test_a_name_that_no_command_could_say_is_refused(fresh_registry, name):
    with pytest.raises(ValueError, match=f"starts with a letter or digit, .* got '{name}'"):
        register_policy(name)
    assert name not in policy_names()


@pytest.mark.parametrize("name", [policies.afd, None, 3, ("a",)])
def test_a_decorator_without_a_name_is_refused(name):
    with pytest.raises(
        TypeError, match=r'write @register_policy\("my-policy"\) above the function'
    ):
        register_policy(name)


def test_what_cannot_be_called_is_no_policy(fresh_registry):
    with pytest.raises(TypeError, match=r"'five' must be a function of \(block, groups\), got 5"):
        register_policy("five")(5)
    assert "five" not in policy_names()


@pytest.mark.parametrize("returned", [[(1, 2)], "afd", None, 5, Template(), [Template(), None]])
def test_a_policy_that_returns_something_else_is_named(fresh_registry, returned):
    register_policy("odd")(lambda block, groups: returned)
    message = (
        "policy 'odd' for K=2 must return a list of weavejax.Template, [] where it has none, got "
        f"{returned!r}"
    )
    with pytest.raises(PolicyError, match="^" + re.escape(message) + "$"):
        policy_templates("odd", block_of(1), 2)


def test_a_policy_that_raises_is_named_with_its_line(fresh_registry):
    def wrong(block, groups):
        return [Template(cuts=(9,))]

    def late(block, groups):
        yield Template()
        raise KeyError("x")

    for policy, kind, words in ((wrong, ValueError, "cuts must rise"), (late, KeyError, "'x'")):
        register_policy(policy.__name__)(policy)
        place = rf"{re.escape(__file__)}:\d+\)$"
        message = rf"^policy '{policy.__name__}' fails for K=1: \w+Error: {words}.*{place}"
        with pytest.raises(PolicyError, match=message) as caught:
            policy_templates(policy.__name__, block_of(1), 1)
        assert isinstance(caught.value.__cause__, kind)


def test_policies_come_from_entry_points(monkeypatch):
    class Point:
        name = "outside"

        def load(self):
            return policies.afd

    monkeypatch.setattr(policies, "entry_points", lambda group: [Point()])
    assert policy_named("outside") is policies.afd
    assert "outside" in policy_names()


def test_an_entry_point_that_does_not_load_is_named(monkeypatch):
    class Point:
        name, value = "outside", "gone:policy"

        def load(self):
            raise ImportError("no gone")

    monkeypatch.setattr(policies, "entry_points", lambda group: [Point()])
    assert policies.require_policy("outside") == "outside"
    with pytest.raises(PolicyError, match="'outside' cannot be loaded from gone:policy: ImportErr"):
        policy_named("outside")


def test_unknown_policy_lists_the_known():
    with pytest.raises(ValueError, match=r"'weaver' \(did you mean 'weave'\?\); policies are colo"):
        policy_named("weaver")
    with pytest.raises(ValueError, match=r"command line: --policy-module FILE.py"):
        policy_named("mine")
    for name in ("colocated,afd", "colocated afd", "colocated, afd"):
        with pytest.raises(ValueError, match=r"separate names by spaces .*: colocated afd\)"):
            policy_named(name)
