"""Moves between sub-meshes of the eight virtual devices."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from weavejax.runtime.transport import InProcessTransport

SPECS = (
    PartitionSpec("replica", None, "model"),
    PartitionSpec(("replica", "model")),
    PartitionSpec("replica"),
    PartitionSpec(),
)
SHAPE = (12, 2, 4)
# (replicas, ranks) whose product of parts divides twelve rows, and ranks four features.
GRIDS = ((1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (2, 2), (3, 2), (1, 4))


def sharding(order, grid, spec):
    count = grid[0] * grid[1]
    devices = np.array([jax.devices()[i] for i in order[:count]], dtype=object)
    return NamedSharding(Mesh(devices.reshape(grid), ("replica", "model")), spec)


@st.composite
def shardings(draw):
    order = draw(st.permutations(range(8)))
    return sharding(order, draw(st.sampled_from(GRIDS)), draw(st.sampled_from(SPECS)))


@pytest.fixture(scope="module")
def transport():
    return InProcessTransport()


def move(transport, arrays, to):
    kinds = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for a in arrays]
    return transport.bind(kinds, to)(arrays)


def check(moved, expected, to):
    assert moved.sharding.is_equivalent_to(to, moved.ndim)
    assert moved.shape == expected.shape and moved.dtype == expected.dtype
    indices = to.addressable_devices_indices_map(expected.shape)
    assert len(moved.addressable_shards) == len(indices)
    for shard in moved.addressable_shards:
        assert np.array_equal(np.asarray(shard.data), expected[indices[shard.device]])


@given(start=shardings(), to=shardings(), seed=st.integers(0, 9))
@settings(max_examples=15)
def test_values_arrive_whatever_the_shardings(transport, start, to, seed):
    values = np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)
    array = jax.device_put(values, start)
    [moved] = move(transport, [array], [to])
    check(moved, values, to)
    assert np.array_equal(np.asarray(array), values)  # the source is still there
    if start == to:
        assert moved is array


def test_arrays_of_different_kinds_move_together(transport):
    two, three = sharding(range(8), (2, 1), SPECS[2]), sharding(range(2, 8), (3, 1), SPECS[2])
    values = [
        np.arange(12, dtype=np.int32),
        np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32),
        np.ones((6, 1), bool),
    ]
    arrays = [jax.device_put(value, two) for value in values]
    there = move(transport, arrays, [three, two, three])
    for value, moved, to in zip(values, there, [three, two, three], strict=True):
        check(moved, value, to)
    assert there[1] is arrays[1]
    back = move(transport, there, [two] * 3)
    for value, moved in zip(values, back, strict=True):
        check(moved, value, two)
    assert move(transport, [], []) == []


@pytest.mark.parametrize(
    ("start", "to"),
    [
        (((2, 1), SPECS[2]), ((3, 1), SPECS[2])),
        (((1, 1), SPECS[2]), ((3, 2), SPECS[0])),
        (((2, 2), SPECS[0]), ((1, 4), SPECS[1])),
    ],
)
def test_after_the_first_move_nothing_passes_through_the_host(transport, start, to):
    start, to = sharding(range(8), *start), sharding(list(reversed(range(8))), *to)
    values = [np.full(SHAPE, fill, np.float32) for fill in (1, 2)]
    arrays = [jax.device_put(value, start) for value in values]
    kind = jax.ShapeDtypeStruct(SHAPE, np.float32, sharding=start)
    bound = transport.bind([kind], [to])
    bound(arrays[:1])
    with (
        jax.transfer_guard_host_to_device("disallow_explicit"),
        jax.transfer_guard_device_to_host("disallow_explicit"),
    ):
        [moved] = bound(arrays[1:])
        moved.block_until_ready()
        with pytest.raises(Exception, match="host-to-device transfer"):
            jax.device_put(values[0], to)  # the guard does guard
    check(moved, values[1], to)
