"""Moves between groups. One small interface; in one process it is ``jax.device_put``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import Sharding

from weavejax.runtime.routes import Box, Delivery, find_route

Array = jax.Array
Move = Callable[[Sequence[Array]], list[Array]]
"""Starts to move arrays; the results may still be on their way."""


class Transport(Protocol):
    """Moves arrays to other shardings without waiting for them."""

    def bind(self, arrays: Sequence[jax.ShapeDtypeStruct], shardings: Sequence[Sharding]) -> Move:
        """Decide once how such arrays travel; the result moves them, again and again.

        Args:
            arrays: shape, dtype and sharding of every array that will be moved together.
            shardings: where each goes.
        """
        ...


class InProcessTransport:
    """Device to device inside one process.

    Shards go straight from device to device. JAX's own ``device_put`` passes through the host
    when the numbers of devices differ, so the pieces are cut, moved and joined here.
    """

    def __init__(self) -> None:
        self._routes: dict[tuple[Any, ...], _Route] = {}  # whose compiled pieces are shared

    def bind(self, arrays: Sequence[jax.ShapeDtypeStruct], shardings: Sequence[Sharding]) -> Move:
        """See :class:`Transport`. All pieces of all arrays go in one ``device_put``."""
        single = [_single_device(array, to) for array, to in zip(arrays, shardings, strict=True)]
        if all(device is not None for device in single):
            return partial(_move_whole, devices=single)
        routes = [self._route(array, to) for array, to in zip(arrays, shardings, strict=True)]
        return partial(_move_pieces, routes=routes)

    def _route(self, array: jax.ShapeDtypeStruct, to: Sharding) -> _Route:
        key = (array.shape, array.dtype, array.sharding, to)
        if key not in self._routes:
            self._routes[key] = _Route(array, to)
        return self._routes[key]


def _single_device(array: jax.ShapeDtypeStruct, to: Sharding) -> Any:
    """The destination when one device sends the whole array to one other."""
    source = array.sharding
    assert source is not None
    if len(source.device_set) > 1 or len(to.device_set) > 1 or source.device_set == to.device_set:
        return None
    [device] = to.device_set
    return device


def _move_whole(arrays: Sequence[Array], devices: Sequence[Any]) -> list[Array]:
    # The result is sharded over one device without the name of its mesh, which programs compiled
    # for that mesh accept; naming it would double the cost.
    return [jax.device_put(array, device) for array, device in zip(arrays, devices, strict=True)]


def _move_pieces(arrays: Sequence[Array], routes: Sequence[_Route]) -> list[Array]:
    pieces: list[Array] = []
    devices: list[Any] = []
    for array, route in zip(arrays, routes, strict=True):
        route.cut(array, pieces)
        devices += route.devices
    landed = iter(jax.device_put(pieces, devices) if pieces else ())
    return [route.join(array, landed) for array, route in zip(arrays, routes, strict=True)]


class _Route:
    """The bound work of one move: cut on the sources, place, join on the destinations."""

    def __init__(self, array: jax.ShapeDtypeStruct, to: Sharding):
        source = array.sharding
        assert source is not None
        self.shape, self.sharding = array.shape, to
        self.same = source.is_equivalent_to(to, len(array.shape))
        self.devices: list[Any] = []
        self._cuts: list[tuple[int, Callable[[Array], Sequence[Array]] | None]] = []
        self._joins: list[tuple[list[int], Callable[..., Array] | None]] = []
        if self.same:
            return
        deliveries = find_route(_boxes(source, array.shape), targets := _boxes(to, array.shape))
        self._bind(deliveries, [device for device, _ in targets])

    def _bind(self, deliveries: Sequence[Delivery], devices: Sequence[Any]) -> None:
        by_source: dict[int, list[tuple[int, int, Box, bool]]] = {}
        for target, delivery in enumerate(deliveries):
            for order, piece in enumerate(delivery.pieces):
                by_source.setdefault(piece.source, []).append(
                    (target, order, piece.slices, piece.whole)
                )
        position: dict[tuple[int, int], int] = {}
        for source, parts in by_source.items():
            wholes = [part for part in parts if part[3]]
            others = [part for part in parts if not part[3]]
            for target, order, _, _ in wholes:
                position[target, order] = len(self.devices)
                self.devices.append(devices[target])
                self._cuts.append((source, None))
            if others:
                boxes = tuple(part[2] for part in others)
                self._cuts.append((source, jax.jit(partial(_cut, boxes=boxes))))
                for target, order, _, _ in others:
                    position[target, order] = len(self.devices)
                    self.devices.append(devices[target])
        for target, delivery in enumerate(deliveries):
            indices = [position[target, order] for order in range(len(delivery.pieces))]
            join = None
            if len(indices) > 1:
                join = jax.jit(partial(_join, grid=delivery.grid))
            self._joins.append((indices, join))

    def cut(self, array: Array, pieces: list[Array]) -> None:
        """Append this move's pieces, in the order of :attr:`devices`."""
        if self.same:
            return
        shards = [shard.data for shard in array.addressable_shards]
        for source, cut in self._cuts:
            if cut is None:
                pieces.append(shards[source])
            else:
                pieces += cut(shards[source])

    def join(self, array: Array, landed: Any) -> Array:
        """Take this move's pieces from ``landed`` and assemble the array."""
        if self.same:
            return array
        mine = [next(landed) for _ in self.devices]
        shards = [
            mine[indices[0]] if join is None else join(*(mine[index] for index in indices))
            for indices, join in self._joins
        ]
        return jax.make_array_from_single_device_arrays(self.shape, self.sharding, shards)


def _boxes(sharding: Sharding, shape: tuple[int, ...]) -> list[tuple[Any, Box]]:
    """(device, box) of every shard, in the order of ``addressable_shards``."""
    indices = sharding.addressable_devices_indices_map(shape)
    boxes = []
    for device, index in indices.items():
        spans = index or (slice(None),) * len(shape)
        bounds = (part.indices(size)[:2] for part, size in zip(spans, shape, strict=True))
        boxes.append((device, tuple(bounds)))
    return boxes


def _cut(value: Array, boxes: tuple[Box, ...]) -> tuple[Array, ...]:
    return tuple(
        jax.lax.slice(value, [low for low, _ in box], [high for _, high in box]) for box in boxes
    )


def _join(*pieces: Array, grid: tuple[int, ...]) -> Array:
    """Pieces in row-major order over ``grid`` to one array."""
    parts = list(pieces)
    for axis in reversed(range(len(grid))):
        count = grid[axis]
        parts = [
            jnp.concatenate(parts[i : i + count], axis=axis) if count > 1 else parts[i]
            for i in range(0, len(parts), count)
        ]
    return parts[0]
