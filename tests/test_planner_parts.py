"""Links inside nodes, frontiers and candidate order."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planner_fakes import FakeProfile, problem

from weavejax.meshes.devices import device_spec
from weavejax.models import operator_sequence, preset_config
from weavejax.models.costs import interface_bytes
from weavejax.plan import DeviceGroup, Template
from weavejax.planner.candidates import significant
from weavejax.planner.frontier import keep_undominated
from weavejax.planner.memory import replica_memory
from weavejax.planner.partition import legal_templates, partition_block
from weavejax.planner.round_trip import round_trip_time
from weavejax.planner.space import build_space
from weavejax.planner.template_facts import operator_table, template_facts, template_traffic
from weavejax.planner.template_set import build_template_set
from weavejax.planner.transfer import shares_node
from weavejax.schedule import boundary_interfaces, occurrence_operators, stage_occurrences

H100 = device_spec("h100-sxm")
groups_of_one_type = st.lists(
    st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 6)), min_size=1, max_size=3
)


def as_groups(pairs):
    return [
        DeviceGroup(device=H100.name, tensor_parallel=ways, replicas=n, resident_batch=1)
        for ways, n in pairs
    ]


@given(groups_of_one_type, st.integers(2, 4))
def test_a_common_factor_of_replicas_does_not_change_node_sharing(pairs, factor):
    multiplied = [(ways, n * factor) for ways, n in pairs]
    assert shares_node(as_groups(pairs), H100) == shares_node(as_groups(multiplied), H100)


@given(groups_of_one_type, st.data())
def test_fewer_devices_a_replica_never_lose_the_fast_link(pairs, data):
    index = data.draw(st.integers(0, len(pairs) - 1))
    ways, replicas = pairs[index]
    fewer = [*pairs]
    fewer[index] = (max(1, ways // 2), replicas)
    assert shares_node(as_groups(fewer), H100) >= shares_node(as_groups(pairs), H100)
    others = pairs[:index] + pairs[index + 1 :]
    if others:
        assert shares_node(as_groups(others), H100) >= shares_node(as_groups(pairs), H100)


def test_dominated_points_are_never_needed():
    """Replacing a dropped point by one that is left never lengthens the round trip."""
    rng = np.random.default_rng(2)
    dropped = 0
    for _ in range(60):
        stages = rng.integers(0, 3, (3, 4)).astype(float)
        class_s = rng.integers(1, 5, (6, 4)).astype(float)
        same = np.zeros(6, dtype=np.int64)
        replicas = rng.integers(1, 3, 6)
        kept = np.ones(6, dtype=np.bool_)
        keep_undominated(stages, class_s, same, same, replicas, 1e-9, kept)
        times = class_s @ stages.T
        assert kept.any()
        for point in np.flatnonzero(~kept):
            dropped += 1
            better = [
                q
                for q in np.flatnonzero(kept)
                if replicas[q] == replicas[point] and (times[q] <= times[point]).all()
            ]
            assert better
            move, owner = (0.5, 0.5, 0.5, 0.5), (0, 1, 0, 1)
            chain = [[t[0], 2.0, t[1], 2.0] for t in (times[better[0]], times[point])]
            now, before = (round_trip_time(c, move, owner, 3) for c in chain)
            assert now <= before
    assert dropped > 20


@pytest.mark.parametrize("name", ["gemma-3-27b", "qwen3-next-80b-a3b", "gpt-oss-20b"])
def test_facts_are_those_of_the_schedule(name):
    config = preset_config(name)
    operators, table = operator_sequence(config), operator_table(config)
    for template in (Template(cuts=(3,)), Template(cuts=(1,), offset=1), Template(layers=2)):
        groups = template.num_stages
        facts = template_facts(config, template, groups)
        stages = stage_occurrences(template, config.num_layers, groups)
        slices = tuple(occurrence_operators(operators, stage) for stage in stages)
        kinds = [op.signature for op in table.representatives]
        for counts, ops in zip(facts.stage_counts, slices, strict=True):
            assert counts[: len(kinds)].tolist() == [
                sum(op.signature == kind for op in ops) for kind in kinds
            ]
        owners = tuple(stage.owner for stage in stages)
        sizes = [interface_bytes(tensors) for tensors in boundary_interfaces(slices, owners)]
        traffic = template_traffic(config, template, groups)
        assert traffic.bytes_per_row.tolist() == sizes
        assert traffic.pair_bytes.sum() == sum(sizes)
        assert (facts.least_pair_bytes <= traffic.pair_bytes).all()


def test_memory_of_the_search_is_memory_of_the_plan():
    checked = 0
    for seed in range(3000, 3012):
        config, cluster, context, _, limits, _ = problem(seed)
        limits = dataclasses.replace(limits, max_groups=2)
        space = build_space(config, cluster, context, limits, FakeProfile(0))
        templates = tuple(legal_templates(partition_block(config), 2))[:5]
        layouts = build_template_set(space, 2, templates)
        for row, template in enumerate(templates):
            stages = stage_occurrences(template, config.num_layers, 2)
            for points in space.points[:2]:
                for p in range(len(points)):
                    option = space.options[points.option[p]]
                    group = option.group(int(points.replicas[p]), int(points.rows[p]))
                    for owner in (0, 1):
                        ops = [
                            op
                            for stage in stages
                            if stage.owner == owner
                            for op in occurrence_operators(operator_sequence(config), stage)
                        ]
                        memory = replica_memory(
                            ops,
                            group,
                            microbatches=points.microbatches,
                            context=context,
                            kv_heads=config.num_kv_heads,
                            interface_bytes_per_row=0,
                            device_memory_bytes=option.device.memory_bytes,
                        )
                        h = points.option[p]
                        need = points.ways[p] * (
                            layouts.weight_bytes[row, owner, h]
                            + points.slots[p] * layouts.slot_bytes[row, owner, h]
                            + points.microbatch_rows[p] * layouts.working_bytes[row, owner, h]
                            + points.rows[p] * layouts.kept_bytes[row, owner]
                        )
                        assert need - points.limit_bytes[p] == memory.short_bytes
                        checked += 1
    assert checked > 300


def test_costs_tie_at_ten_digits():
    assert significant(1.23456789012) == significant(1.23456789014)
    assert significant(1.2345678901) < significant(1.2345678911)
