"""Frames and handshakes between workers."""

from __future__ import annotations

import socket
import struct
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from weavejax.workers.frames import MAX_HEADER_BYTES, Channel, ConnectionLostError
from weavejax.workers.handshake import RefusedConnectionError, accept, dial, listen, new_secret

ARRAYS = st.sampled_from(["int32", "float32", "uint32", "bool"]).flatmap(
    lambda dtype: st_numpy.arrays(dtype, st_numpy.array_shapes(min_dims=0, max_dims=3, min_side=0))
)


def pair() -> tuple[Channel, Channel, socket.socket]:
    left, right = socket.socketpair()
    return Channel(left), Channel(right), left


@given(arrays=st.lists(ARRAYS, max_size=4))
def test_arrays_arrive_as_they_were(arrays: list[np.ndarray]) -> None:
    left, right, _ = pair()
    left.send({"pass": 3}, arrays)
    header, got = right.receive()
    left.close()
    right.close()
    assert header == {"pass": 3}
    assert [a.dtype for a in got] == [a.dtype for a in arrays]
    for ours, theirs in zip(got, arrays, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_bfloat16_and_strided_rows_travel() -> None:
    import jax.numpy as jnp

    left, right, _ = pair()
    rows = np.asarray(jnp.arange(12, dtype=jnp.bfloat16).reshape(4, 3))
    left.send({}, [rows[1:3], np.arange(6).reshape(2, 3).T])
    _, (some, turned) = right.receive()
    assert some.dtype == rows.dtype
    np.testing.assert_array_equal(some.astype(np.float32), rows[1:3].astype(np.float32))
    np.testing.assert_array_equal(turned, np.arange(6).reshape(2, 3).T)


def test_a_large_frame_is_sent_in_parts() -> None:
    left, right, _ = pair()
    big = np.arange(3_000_000, dtype=np.int32)
    sender = threading.Thread(target=left.send, args=({}, [big]))
    sender.start()
    _, [got] = right.receive()
    sender.join()
    np.testing.assert_array_equal(got, big)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"", "the other end closed the connection"),
        (b"\0\0", "the other end closed the connection"),
        (struct.pack("!IQ", MAX_HEADER_BYTES + 1, 0), "a frame has at most"),
        (struct.pack("!IQ", 29, 0) + b'{"arrays": [["int32", [1]]]}\n', "shorter than the arrays"),
    ],
)
def test_what_is_no_frame_ends_the_connection(sent: bytes, message: str) -> None:
    _, right, raw = pair()
    raw.sendall(sent)
    raw.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionLostError, match=message):
        right.receive()


def test_silence_is_limited() -> None:
    left, right, _ = pair()
    right.limit_waiting(receive_s=0.05, send_s=0.05)
    with pytest.raises(ConnectionLostError, match="receiving failed"):
        right.receive()
    with pytest.raises(ConnectionLostError, match="sending failed"):
        right.send({}, [np.zeros(10_000_000, np.uint8)])  # nobody takes it
    left.close()


def welcome(secret: bytes, timeout_s: float = 5.0) -> tuple[tuple[str, int], list[object]]:
    """A listener for one connection; what it made of it is put into the list."""
    listener = listen("127.0.0.1")
    outcome: list[object] = []

    def run() -> None:
        connected, _ = listener.accept()
        try:
            outcome.append(accept(connected, secret, timeout_s))
        except RefusedConnectionError as error:
            outcome.append(error)
        listener.close()

    thread = threading.Thread(target=run)
    thread.start()
    outcome.append(thread)
    return listener.getsockname(), outcome


def test_both_ends_that_know_the_secret_are_connected() -> None:
    secret = new_secret()
    address, outcome = welcome(secret)
    channel = dial(address, secret)
    outcome[0].join()  # type: ignore[attr-defined]
    channel.send({"hello": 1})
    assert outcome[1].receive() == ({"hello": 1}, [])  # type: ignore[attr-defined]


def test_a_peer_with_another_secret_is_refused_before_it_says_anything() -> None:
    address, outcome = welcome(new_secret())
    with pytest.raises(RefusedConnectionError, match="handshake"):
        dial(address, new_secret())
    outcome[0].join()  # type: ignore[attr-defined]
    assert "does not know the secret was refused" in str(outcome[1])


def test_a_peer_that_says_nothing_is_dropped() -> None:
    address, outcome = welcome(new_secret(), timeout_s=0.1)
    with socket.create_connection(address):
        outcome[0].join()  # type: ignore[attr-defined]
    assert "the handshake failed: timed out" in str(outcome[1])


def test_a_listener_without_the_secret_is_found_out() -> None:
    impostor = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connected, _ = impostor.accept()
        connected.sendall(bytes(32))
        connected.recv(64)
        connected.sendall(bytes(32))

    threading.Thread(target=answer, daemon=True).start()
    with pytest.raises(RefusedConnectionError, match="does not know the secret; is it another"):
        dial(impostor.getsockname(), new_secret())


def test_nobody_there() -> None:
    listener = listen("127.0.0.1")
    address = listener.getsockname()
    listener.close()
    with pytest.raises(RefusedConnectionError, match="cannot reach 127.0.0.1"):
        dial(address, new_secret())


def test_only_an_address_of_this_host_is_listened_on() -> None:
    with pytest.raises(OSError, match="must be an address of this host, got '203.0.113.1'"):
        listen("203.0.113.1")
