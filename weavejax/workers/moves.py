"""How rows get from one worker's devices to another's: through sockets, or device to device.

Sockets stage rows in host memory; they are authenticated and bounded, and the choice on CPU.
``jax.experimental.transfer`` moves device arrays without that stage; its pulls wait for ever when
the peer is stopped, which the coordinator's watch bounds, and it knows no secret.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np

from weavejax.workers.inbox import Inbox
from weavejax.workers.links import Outlet, fetch_rows
from weavejax.workers.share import RowRoute

Wires = Sequence[jax.ShapeDtypeStruct]
_PROBE_TIMEOUT_S = 10.0


class Crossing(NamedTuple):
    """Which rows: those of one boundary and microbatch in one pass."""

    number: int
    boundary: int
    microbatch: int


class Moves(Protocol):
    """Sends and receives the rows of boundaries."""

    def send(
        self, arrays: Sequence[jax.Array], routes: Sequence[RowRoute], crossing: Crossing
    ) -> None:
        """Send each route its rows, all arrays in one transfer."""
        ...

    def receive(
        self,
        wires: Wires,
        routes: Sequence[RowRoute],
        crossing: Crossing,
        waiting: Callable[[str], None],
    ) -> list[jax.Array]:
        """The rows of all routes on this worker's devices, perhaps still on their way.

        ``waiting`` is told the peer before the call has to wait for it.
        """
        ...

    def unfinished(self) -> tuple[Crossing, str] | None:
        """The oldest rows that have not come although :meth:`receive` has returned them."""
        ...


class SocketMoves:
    """Rows as frames between hosts' memories.

    Args:
        outlets: worker to the connection to it.
        inbox: where rows arrive.
        at_once: :meth:`send` waits for the results and sends them, with no thread between.
    """

    def __init__(self, outlets: Mapping[str, Outlet], inbox: Inbox, *, at_once: bool):
        self._outlets, self._inbox, self._at_once = outlets, inbox, at_once

    def send(
        self, arrays: Sequence[jax.Array], routes: Sequence[RowRoute], crossing: Crossing
    ) -> None:
        """See :class:`Moves`; the peer reads all the time, so that a send does not wait long."""
        header = {
            "pass": crossing.number,
            "boundary": crossing.boundary,
            "microbatch": crossing.microbatch,
        }
        for route in routes:
            outlet = self._outlets[str(route.destination)]
            if self._at_once:
                outlet.send(header, fetch_rows(arrays, route.rows))
                continue
            outlet.put(header, lambda route=route: fetch_rows(arrays, route.rows))

    def receive(
        self,
        wires: Wires,
        routes: Sequence[RowRoute],
        crossing: Crossing,
        waiting: Callable[[str], None],
    ) -> list[jax.Array]:
        """See :class:`Moves`: waits until the rows are in host memory."""
        parts = []
        for route in routes:
            key = (crossing.number, crossing.boundary, crossing.microbatch, str(route.source))
            if not self._inbox.has_rows(key):
                waiting(str(route.source))
            parts.append(self._inbox.rows(key))
        joined = parts[0]
        if len(parts) > 1:
            joined = [np.concatenate(rows) for rows in zip(*parts, strict=True)]
        shardings = [wire.sharding for wire in wires]
        if all(one is not None and len(one.device_set) == 1 for one in shardings):
            # Programs take host rows as arguments, at a tenth of `device_put`'s cost.
            return cast("list[jax.Array]", joined)
        return jax.device_put(joined, shardings)

    def unfinished(self) -> None:
        """Nothing: :meth:`receive` has waited."""


class DeviceMoves:
    """Rows device to device by ``jax.experimental.transfer``; replicas of one device.

    Args:
        server: this worker's transfer server.
        peers: worker to the address of its transfer server.
        cells: cells of a microbatch that this worker holds.
        secret: of the session; the numbers of transfers are derived from it.
    """

    def __init__(self, server: Any, peers: Mapping[str, str], cells: int, secret: bytes):
        self._server, self._cells, self._secret = server, cells, secret
        self._connections = {peer: server.connect(address) for peer, address in peers.items()}
        self._pulled: deque[tuple[Crossing, str, Any]] = deque()

    def send(
        self, arrays: Sequence[jax.Array], routes: Sequence[RowRoute], crossing: Crossing
    ) -> None:
        """See :class:`Moves`: offers the rows under a number that the peer knows."""
        for route in routes:
            self._server.await_pull(self._number(route, crossing), [route.rows(a) for a in arrays])

    def receive(
        self,
        wires: Wires,
        routes: Sequence[RowRoute],
        crossing: Crossing,
        waiting: Callable[[str], None],
    ) -> list[jax.Array]:
        """See :class:`Moves`: asks ahead of the offer, and returns at once."""
        parts = []
        for route in routes:
            count = (route.cut[1] - route.cut[0]) * (wires[0].shape[0] // self._cells)
            specs = [
                jax.ShapeDtypeStruct((count, *wire.shape[1:]), wire.dtype, sharding=_single(wire))
                for wire in wires
            ]
            peer = str(route.source)
            pulled = self._connections[peer].pull(self._number(route, crossing), specs)
            self._pulled.append((crossing, peer, pulled[0]))
            parts.append(pulled)
        if len(parts) == 1:
            return list(parts[0])
        return [jnp.concatenate(rows) for rows in zip(*parts, strict=True)]

    def unfinished(self) -> tuple[Crossing, str] | None:
        """See :class:`Moves`; called from the thread that reports, which alone takes out."""
        while self._pulled:
            crossing, peer, array = self._pulled[0]
            if not array.is_ready():
                return crossing, peer
            self._pulled.popleft()
        return None

    def _number(self, route: RowRoute, crossing: Crossing) -> int:
        """63 bits that only who knows the secret can name."""
        text = f"{route.source} {route.destination} {crossing}".encode()
        digest = hashlib.blake2b(text, key=self._secret, digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1


def start_server(interface: str) -> Any | None:
    """A transfer server on an interface that has proved to move an array, or ``None``."""
    try:
        from jax.experimental import transfer

        client = jax.local_devices()[0].client
        address = f"[{interface}]:0" if ":" in interface else f"{interface}:0"
        server = transfer.start_transfer_server(client, address, [address])
    except Exception:  # a platform or a JAX without it: that is what the probe asks
        return None
    moved = threading.Event()

    def probe() -> None:
        sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        array = jnp.arange(4, dtype=jnp.int32, device=sharding)
        server.await_pull(0, [array])
        spec = jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)
        [got] = server.connect(server.address()).pull(0, [spec])
        if np.array_equal(np.asarray(got), np.arange(4)):
            moved.set()

    threading.Thread(target=probe, daemon=True).start()
    return server if moved.wait(_PROBE_TIMEOUT_S) else None


def _single(wire: jax.ShapeDtypeStruct) -> jax.sharding.Sharding:
    assert wire.sharding is not None
    [device] = wire.sharding.device_set
    return jax.sharding.SingleDeviceSharding(device)
