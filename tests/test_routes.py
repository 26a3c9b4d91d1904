"""Routes: every element of a destination box arrives once, from a source that holds it."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weavejax.runtime.routes import Piece, find_route


@st.composite
def shards(draw, shape, device_names):
    """Boxes of a random grid over ``shape``, each held by one to three devices."""
    axes = []
    for size in shape:
        inner = draw(st.sets(st.integers(1, size - 1), max_size=3)) if size > 1 else set()
        edges = [0, *sorted(inner), size]
        axes.append(list(itertools.pairwise(edges)))
    copies = draw(st.integers(1, 3))
    boxes = [box for box in itertools.product(*axes) for _ in range(copies)]
    boxes = draw(st.permutations(boxes))
    return [(f"{device_names}{index}", box) for index, box in enumerate(boxes)]


@st.composite
def moves(draw):
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    # The same names on both sides, so that some boxes stay on their device.
    return shape, draw(shards(shape, "d")), draw(shards(shape, draw(st.sampled_from("de"))))


def region(box):
    return tuple(slice(low, high) for low, high in box)


def joined(pieces, grid):
    """Arrays in row-major order over ``grid`` to one array."""
    if not grid:
        return pieces[0]
    size = len(pieces) // grid[0]
    rows = [joined(pieces[at : at + size], grid[1:]) for at in range(0, len(pieces), size)]
    return np.concatenate(rows, axis=rows[0].ndim - len(grid))


@given(moves())
@settings(max_examples=150)
def test_pieces_fill_each_destination_box_exactly_once(move):
    shape, sources, destinations = move
    values = np.arange(np.prod(shape)).reshape(shape)
    local = [values[region(box)] for _, box in sources]
    deliveries = find_route(sources, destinations)
    assert len(deliveries) == len(destinations)
    for (device, target), delivery in zip(destinations, deliveries, strict=True):
        times = np.zeros(shape, int)
        arrived = []
        for piece in delivery.pieces:
            times[region(piece.box)] += 1
            part = local[piece.source][region(piece.slices)]
            assert np.array_equal(part, values[region(piece.box)])
            assert piece.whole == (part.shape == local[piece.source].shape)
            # A copy that is already there is never fetched from elsewhere.
            owner, box = sources[piece.source]
            assert owner == device or (device, box) not in sources
            arrived.append(part)
        expected = np.zeros(shape, int)
        expected[region(target)] = 1
        assert np.array_equal(times, expected)
        assert np.array_equal(joined(arrived, delivery.grid), values[region(target)])


def test_copies_share_the_work():
    box = ((0, 4),)
    deliveries = find_route([("a", box), ("b", box)], [("c", box), ("d", box)])
    assert [d.pieces for d in deliveries] == [
        (Piece(0, box, box, whole=True),),
        (Piece(1, box, box, whole=True),),
    ]


def test_scalars_move_whole():
    [delivery] = find_route([("a", ())], [("b", ())])
    assert delivery.pieces == (Piece(0, (), (), whole=True),) and delivery.grid == ()


@given(moves(), st.data())
@settings(max_examples=60)
def test_sources_that_leave_a_gap_are_refused(move, data):
    shape, sources, _ = move
    _, lost = data.draw(st.sampled_from(sources))
    left = [source for source in sources if source[1] != lost]
    whole = tuple((0, size) for size in shape)
    message = re.escape(f"the sources must tile every destination box, got {whole} from {{")
    with pytest.raises(ValueError, match="^" + message):
        find_route(left, [("z", whole)])
