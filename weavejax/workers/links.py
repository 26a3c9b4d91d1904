"""Links: what crosses a boundary between workers, over sockets, staged through host memory.

One connection for each ordered pair of workers that share rows. A thread per incoming connection
reads ahead, so that microbatch m+1 arrives while m computes. An accelerator's results are waited
for and sent by a thread per outgoing connection, so that the replica's loop dispatches the next
action meanwhile. On CPU the loop waits and sends by itself: its core has nothing else to do.
All arrays of one (boundary, microbatch) travel in one frame.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np

from weavejax.workers.frames import Channel, ConnectionLostError, Header
from weavejax.workers.handshake import RefusedConnectionError, accept, dial, listen

Deliver = Callable[[str, Header, list[np.ndarray]], None]
"""Called with (peer, header, arrays) of every frame that came."""
Lost = Callable[[str, str], None]
"""Called with (peer, reason) when a connection is gone."""


class Outlet:
    """Sends results in order from a thread of its own."""

    def __init__(self, peer: str, channel: Channel, lost: Lost):
        self.peer, self._channel, self._lost = peer, channel, lost
        self._queue: SimpleQueue[tuple[Header, Callable[[], list[np.ndarray]]] | None] = (
            SimpleQueue()
        )
        self.waiting_for: Header | None = None
        """Header of the result whose computation is waited for, for reports of progress."""
        self.sent = 0
        self._thread = threading.Thread(target=self._run, name=f"to {peer}", daemon=True)
        self._thread.start()

    def put(self, header: Header, fetch: Callable[[], list[np.ndarray]]) -> None:
        """Send what ``fetch`` returns; it may wait for a computation."""
        self._queue.put((header, fetch))

    def send(self, header: Header, arrays: list[np.ndarray]) -> None:
        """Send at once, from the calling thread; not to be mixed with :meth:`put`."""
        try:
            self._channel.send(header, arrays)
        except ConnectionLostError as error:
            self._lost(self.peer, str(error))
        self.sent += 1

    def cut(self) -> None:
        """Close the connection under whoever uses it."""
        self._channel.close()

    def close(self) -> None:
        """Stop after what is queued, at most a moment from now."""
        self._queue.put(None)
        self._thread.join(1.0)
        self._channel.close()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            header, fetch = item
            self.waiting_for = header
            try:
                self._channel.send(header, fetch())
            except ConnectionLostError as error:
                self._lost(self.peer, str(error))
                return
            except Exception as error:  # a computation failed: named once, by its own worker
                self._lost(self.peer, f"computing failed: {type(error).__name__}: {error}")
                return
            self.waiting_for = None
            self.sent += 1
            del item, header, fetch  # the arrays of the last move are not held while idle


class Links:
    """All data connections of one worker."""

    def __init__(self, name: str, interface: str, secret: bytes, deliver: Deliver, lost: Lost):
        self.name, self._secret = name, secret
        self._deliver, self._lost = deliver, lost
        self._listener = listen(interface)
        self.port: int = self._listener.getsockname()[1]
        self.outlets: dict[str, Outlet] = {}
        self._inlets: dict[str, Channel] = {}
        self._arrived = threading.Condition()
        threading.Thread(target=self._accept, name="accept", daemon=True).start()

    def connect(
        self, peers: Mapping[str, tuple[str, int]], expected: Sequence[str], timeout_s: float = 30.0
    ) -> None:
        """Dial the workers this one sends to, and wait for those that send to it.

        Raises:
            RefusedConnectionError: a peer cannot be reached, or did not come in time.
        """
        for peer, address in peers.items():
            channel = dial(address, self._secret)
            channel.send({"from": self.name})
            self.outlets[peer] = Outlet(peer, channel, self._lost)
        with self._arrived:
            if not self._arrived.wait_for(lambda: set(expected) <= set(self._inlets), timeout_s):
                missing = sorted(set(expected) - set(self._inlets))
                raise RefusedConnectionError(
                    f"every worker that sends must connect within {timeout_s:g} s, missing: "
                    + ", ".join(missing)
                )
        self._stop_listening()  # everyone is here: nothing more is accepted

    def drop(self) -> None:
        """Cut this worker's connections to and from others, as a broken network might."""
        for outlet in self.outlets.values():
            outlet.cut()
        with self._arrived:
            for channel in self._inlets.values():
                channel.close()

    def close(self) -> None:
        """End every connection."""
        self._stop_listening()
        for outlet in self.outlets.values():
            outlet.close()
        with self._arrived:
            for channel in self._inlets.values():
                channel.close()

    def _stop_listening(self) -> None:
        try:
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        except OSError:
            pass  # is closed already
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._welcome, args=(connected,), daemon=True).start()

    def _welcome(self, connected: socket.socket) -> None:
        try:
            channel = accept(connected, self._secret)
            header, _ = channel.receive()
        except ConnectionError:
            return  # a stranger
        peer = str(header.get("from"))
        with self._arrived:
            self._inlets[peer] = channel
            self._arrived.notify_all()
        self._read(peer, channel)

    def _read(self, peer: str, channel: Channel) -> None:
        try:
            while True:
                self._deliver(peer, *channel.receive())
        except ConnectionLostError as error:
            self._lost(peer, str(error))


def fetch_rows(arrays: Sequence[Any], cut: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
    """Device arrays to the rows that travel; waits for their computation."""
    return [cut(np.asarray(array)) for array in arrays]
