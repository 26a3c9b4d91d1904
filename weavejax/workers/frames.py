"""Frames: a small JSON header and raw arrays over a socket. Nothing is ever unpickled.

A frame is ``!IQ`` (bytes of the header, bytes of the arrays), the header, and the arrays one after
another. The header lists the arrays' dtypes and shapes, so that the receiver reads them into one
buffer and looks at it through views.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any

import ml_dtypes  # noqa: F401  (teaches numpy the name bfloat16)
import numpy as np

_SIZES = struct.Struct("!IQ")
MAX_HEADER_BYTES = 16 * 2**20
MAX_PAYLOAD_BYTES = 64 * 2**30
_AHEAD_BYTES = 2**16

Header = dict[str, Any]


class ConnectionLostError(ConnectionError):
    """The other end closed the connection, or sent what is no frame."""


class Channel:
    """Frames over one connected socket. Any thread may send; one thread receives.

    Examples:
        >>> left, right = (Channel(end) for end in socket.socketpair())
        >>> left.send({"do": "rows"}, [np.arange(3, dtype=np.int32)])
        >>> right.receive()
        ({'do': 'rows'}, [array([0, 1, 2], dtype=int32)])
        >>> left.close()
        >>> right.receive()
        Traceback (most recent call last):
        weavejax.workers.frames.ConnectionLostError: the other end closed the connection
    """

    def __init__(self, connected: socket.socket):
        self._socket = connected
        self._lock = threading.Lock()
        self._ahead = memoryview(bytearray(_AHEAD_BYTES))
        self._start = self._stop = 0
        if connected.family != socket.AF_UNIX:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, header: Header, arrays: Sequence[np.ndarray] = ()) -> None:
        """Send one frame; returns when the kernel has taken it.

        Raises:
            ConnectionLostError: the connection is gone.
        """
        raw = [_raw_bytes(array) for array in arrays]
        described = [[array.dtype.name, list(array.shape)] for array in arrays]
        text = json.dumps({**header, "arrays": described} if described else header).encode()
        buffers = [_SIZES.pack(len(text), sum(part.nbytes for part in raw)) + text, *raw]
        try:
            with self._lock:
                _send_all(self._socket, buffers)
        except OSError as error:
            raise ConnectionLostError(f"sending failed: {error}") from None

    def receive(self) -> tuple[Header, list[np.ndarray]]:
        """Wait for one frame.

        Raises:
            ConnectionLostError: the connection is gone or the frame breaks a limit.
        """
        try:
            header_bytes, payload_bytes = _SIZES.unpack(self._read(_SIZES.size).data)
            if header_bytes > MAX_HEADER_BYTES or payload_bytes > MAX_PAYLOAD_BYTES:
                raise ConnectionLostError(
                    f"a frame has at most {MAX_HEADER_BYTES} bytes of header and "
                    f"{MAX_PAYLOAD_BYTES} of arrays, got {header_bytes} and {payload_bytes}"
                )
            header = json.loads(bytes(self._read(header_bytes)))
            payload = self._read(payload_bytes) if payload_bytes else None
        except OSError as error:
            if isinstance(error, ConnectionLostError):
                raise
            raise ConnectionLostError(f"receiving failed: {error}") from None
        return header, _views(header.pop("arrays", ()), payload)

    def limit_waiting(self, *, receive_s: float, send_s: float) -> None:
        """Let :meth:`receive` fail when nothing comes, and :meth:`send` when nothing goes."""
        for option, seconds in ((socket.SO_RCVTIMEO, receive_s), (socket.SO_SNDTIMEO, send_s)):
            value = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
            self._socket.setsockopt(socket.SOL_SOCKET, option, value)

    def close(self) -> None:
        """End the connection at once; a thread that waits on it stops with an error."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # was closed by the other end
        self._socket.close()

    def _read(self, count: int) -> np.ndarray:
        """``count`` bytes; what more has come stays for the next call, to save system calls."""
        buffer = np.empty(count, np.uint8)
        view, got = buffer.data, 0
        while got < count:
            ready = min(count - got, self._stop - self._start)
            if ready:
                view[got : got + ready] = self._ahead[self._start : self._start + ready]
                self._start += ready
                got += ready
            elif count - got >= len(self._ahead):
                got += self._some(view[got:])
            else:
                self._start, self._stop = 0, self._some(self._ahead)
        return buffer

    def _some(self, into: memoryview) -> int:
        count = self._socket.recv_into(into)
        if count == 0:
            raise ConnectionLostError("the other end closed the connection")
        return count


def _raw_bytes(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _send_all(connected: socket.socket, buffers: list[Any]) -> None:
    """``sendmsg`` until everything is out: header and arrays in one call as a rule."""
    parts = [memoryview(buffer) for buffer in buffers if len(buffer)]
    while parts:
        sent = connected.sendmsg(parts)
        while parts and sent >= len(parts[0]):
            sent -= len(parts.pop(0))
        if sent:
            parts[0] = parts[0][sent:]


def _views(described: Sequence[Any], payload: np.ndarray | None) -> list[np.ndarray]:
    arrays, start = [], 0
    for name, shape in described:
        dtype = np.dtype(name)
        stop = start + math.prod(shape) * dtype.itemsize
        if payload is None or stop > payload.size:
            if stop > start:
                raise ConnectionLostError("a frame is shorter than the arrays its header lists")
            arrays.append(np.empty(shape, dtype))
            continue
        arrays.append(payload[start:stop].view(dtype).reshape(shape))
        start = stop
    return arrays
