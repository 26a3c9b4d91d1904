"""One session with the workers of a plan: start them, send commands, take results, watch.

A session ends with the first failure; the next one has new processes and a new secret. The
coordinator speaks to workers at setup and between passes, never between stages.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np

from weavejax.workers.failure import WorkerError, find_failure
from weavejax.workers.frames import ConnectionLostError, Header
from weavejax.workers.handshake import RefusedConnectionError, accept
from weavejax.workers.launch import Launcher
from weavejax.workers.options import WorkerOptions
from weavejax.workers.orders import Orders
from weavejax.workers.peer import Peer
from weavejax.workers.progress_report import Report
from weavejax.workers.results import PassResult
from weavejax.workers.share import WorkerName

SETTLE_S = 0.3
"""After a first sign of failure, time for its cause to show: an exit status, fresh reports."""


class Coordinator:
    """Workers of one session. Made ready by the constructor; :meth:`close` ends it."""

    def __init__(
        self,
        orders: Mapping[WorkerName, Orders],
        listener: socket.socket,
        secret: bytes,
        launcher: Launcher,
        options: WorkerOptions,
    ):
        self._launcher, self._options = launcher, options
        self._names = tuple(orders)
        self._peers: dict[WorkerName, Peer] = {}
        self._results: dict[tuple[int, int], PassResult] = {}
        self._timing = False
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self.failure: WorkerError | None = None
        try:
            for name, order in orders.items():
                launcher.start(name, order)
            self._await_hellos(listener, secret)
            self._watcher = threading.Thread(target=self._watch, name="watch", daemon=True)
            self._watcher.start()
            self._await_all("prepared")
            self._introduce()
            self._await_all("ready")
        except BaseException:
            self.close()
            raise

    # -- passes --------------------------------------------------------------------------------

    @property
    def compiled(self) -> int:
        """Programs compiled, by all workers."""
        return sum(peer.compiled for peer in self._peers.values())

    def expect(self, number: int, microbatch: int, replicas: int) -> PassResult:
        """A result that the last group's workers will send."""
        result = PassResult(replicas)
        with self._changed:
            if self.failure is not None:
                raise self.failure
            self._results[number, microbatch] = result
        return result

    def broadcast(self, header: Header, arrays: Sequence[np.ndarray] = ()) -> None:
        """Send a command to every worker.

        Raises:
            WorkerError: one is gone.
        """
        for peer in self._peers.values():
            if self.failure is not None:
                raise self.failure
            try:
                peer.channel.send(header, arrays)
            except ConnectionLostError:
                peer.closed = True
                self._wait_for_failure()

    def times(self, number: int) -> dict[WorkerName, list[float]]:
        """What every worker timed in a pass, in seconds; waits for it.

        Raises:
            WorkerError: a worker failed.
        """
        peers = self._peers.values()
        with self._changed:
            self._timing = True
            self._changed.wait_for(
                lambda: self.failure is not None or all(number in peer.times for peer in peers)
            )
            self._timing = False
            if self.failure is not None:
                raise self.failure
            return {name: peer.times.pop(number) for name, peer in self._peers.items()}

    def process_ids(self) -> dict[WorkerName, int]:
        """Process number of every worker on its host."""
        return {name: peer.process_id for name, peer in self._peers.items()}

    def addresses(self) -> dict[WorkerName, tuple[str, int]]:
        """Where every worker takes rows from others."""
        return {name: peer.address for name, peer in self._peers.items()}

    def send(self, name: WorkerName, header: Header) -> None:
        """Send a command to one worker."""
        self._peers[name].channel.send(header)

    # -- setup ---------------------------------------------------------------------------------

    def _await_hellos(self, listener: socket.socket, secret: bytes) -> None:
        deadline = time.monotonic() + self._options.start_timeout_s
        listener.settimeout(0.2)
        while len(self._peers) < len(self._names):
            self._check_started(deadline)
            try:
                connected, _ = listener.accept()
                channel = accept(connected, secret)
                header, _ = channel.receive()
            except (TimeoutError, RefusedConnectionError, ConnectionLostError):
                continue  # a stranger, or nobody yet
            name = WorkerName.parse(header["hello"])
            host, port = header["address"]
            channel.limit_waiting(
                receive_s=self._options.silence_s, send_s=self._options.failure_timeout_s
            )
            peer = self._peers[name] = Peer(channel, (host, port), header["process"])
            threading.Thread(
                target=self._read, args=(name, peer), name=f"from {name}", daemon=True
            ).start()
        listener.close()

    def _check_started(self, deadline_s: float) -> None:
        for name in self._names:
            status = self._launcher.exit_status(name)
            if name not in self._peers and status is not None:
                raise WorkerError(
                    f"ended while it started (status {status}):\n{self._launcher.log_tail(name)}",
                    name,
                )
            if name not in self._peers and time.monotonic() > deadline_s:
                raise WorkerError(f"did not start within {self._options.start_timeout_s:g} s", name)

    def _introduce(self) -> None:
        """Tell all workers where the others are. Rows go device to device if all of them can."""
        peers = {str(name): peer for name, peer in self._peers.items()}
        servers = {name: peer.server for name, peer in peers.items()}
        self.device_moves = all(server is not None for server in servers.values())
        if not self.device_moves:
            servers = dict.fromkeys(servers)
        addresses = {name: list(peer.address) for name, peer in peers.items()}
        self.broadcast({"do": "peers", "peers": addresses, "servers": servers})

    def _await_all(self, state: str) -> None:
        deadline = time.monotonic() + self._options.start_timeout_s
        with self._changed:
            while not all(getattr(peer, state) for peer in self._peers.values()):
                if self.failure is not None:
                    raise self.failure
                if time.monotonic() > deadline:
                    late = next(n for n, peer in self._peers.items() if not getattr(peer, state))
                    raise WorkerError(
                        f"was not {state} within {self._options.start_timeout_s:g} s", late
                    )
                self._changed.wait(0.2)

    # -- what workers say ----------------------------------------------------------------------

    def _read(self, name: WorkerName, peer: Peer) -> None:
        try:
            while True:
                self._take(name, peer, *peer.channel.receive())
        except ConnectionLostError:
            peer.closed = True
            self._notice()

    def _take(self, name: WorkerName, peer: Peer, header: Header, arrays: list[np.ndarray]) -> None:
        peer.answered_s = now_s = time.monotonic()
        if "boundary" in header:
            key = (header["pass"], header["microbatch"])
            with self._changed:
                result = self._results.get(key)
                if result is not None and result.put(name.replica, arrays):
                    del self._results[key]
        elif "times" in header:
            with self._changed:
                peer.times[header["pass"]] = header["times"]
                self._changed.notify_all()
        elif "report" in header:
            report = Report.from_dict(header["report"])
            if report.steps != peer.report.steps:
                peer.moved_s = now_s
            peer.report = report
        elif "ready" in header:
            with self._changed:
                peer.ready, peer.moved_s = True, now_s
                self._changed.notify_all()
        elif "prepared" in header:
            with self._changed:
                peer.prepared, peer.compiled = True, header["prepared"]
                peer.server = header["server"]
                self._changed.notify_all()
        elif "lost" in header:
            peer.lost = (header["lost"], header["reason"])
            self._notice()
        elif "error" in header:
            peer.error = header["error"]
            self._notice()

    # -- watching ------------------------------------------------------------------------------

    def _notice(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _watch(self) -> None:
        """Ask every worker how it is, and judge."""
        since_s = time.monotonic()
        while not self._ended.is_set():
            self._ask()
            with self._changed:
                self._changed.wait(self._options.beat_s)
                busy = bool(self._results) or self._timing
            if not busy:
                since_s = time.monotonic()  # standstill counts while there is work
            if self._judge(busy, since_s) is None:
                continue
            if self._ended.wait(SETTLE_S):
                return
            self._ask()
            if self._ended.wait(SETTLE_S):
                return
            failure = self._judge(busy, since_s)
            if failure is not None:
                self._fail(failure)
                return

    def _ask(self) -> None:
        for peer in self._peers.values():
            if not peer.closed:
                try:
                    peer.channel.send({"do": "ping"})
                except ConnectionLostError:
                    peer.closed = True

    def _judge(self, busy: bool, since_s: float) -> WorkerError | None:
        now_s = time.monotonic()
        seen = {
            name: peer.seen(now_s, since_s, self._launcher.exit_status(name))
            for name, peer in self._peers.items()
        }
        return find_failure(seen, timeout_s=self._options.failure_timeout_s, busy=busy)

    def _fail(self, failure: WorkerError) -> None:
        with self._changed:
            self.failure = failure
            for result in self._results.values():
                result.fail(failure)
            self._results.clear()
            self._changed.notify_all()

    def _wait_for_failure(self) -> None:
        """A connection broke: wait until the watcher has named why."""
        with self._changed:
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self.failure is not None, self._options.failure_timeout_s + 10.0
            )
        raise self.failure or RuntimeError("a worker's connection closed and no cause was found")

    def close(self) -> None:
        """Tell the workers to end, and see to it that they do. Never waits long."""
        self._ended.set()
        self._notice()
        for peer in self._peers.values():
            peer.channel.close()  # a worker ends when its connection does
        self._launcher.kill()
        closed = WorkerError("was ended with its engine", self._names[0])
        self._fail(self.failure or closed)
