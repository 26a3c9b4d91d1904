"""A worker's process: ``python -m weavejax.workers.process``, orders as JSON on standard input.

It ends when the coordinator says so, when its connection to the coordinator closes or falls
silent, and (on Linux) when the process that started it ends: no worker outlives its engine.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import traceback

import jax

from weavejax.compilation_cache import keep_compiled_programs
from weavejax.meshes.submesh import group_meshes
from weavejax.runtime.binding import bind_stages
from weavejax.runtime.group import GroupRunner
from weavejax.runtime.programs import shared_programs
from weavejax.runtime.stage_programs import compile_all
from weavejax.schedule import build_schedule
from weavejax.workers.frames import ConnectionLostError
from weavejax.workers.handshake import dial
from weavejax.workers.inbox import Inbox
from weavejax.workers.links import Links, Outlet
from weavejax.workers.model_source import open_model
from weavejax.workers.moves import DeviceMoves, Moves, SocketMoves, start_server
from weavejax.workers.orders import Orders
from weavejax.workers.progress_report import Report
from weavejax.workers.replica import Replica
from weavejax.workers.share import RowRoute, WorkerName, row_routes, worker_share

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run one worker until it is told to stop."""
    _die_with_parent()
    orders = Orders.from_dict(json.loads(sys.stdin.readline()))
    if orders.cores is not None:
        os.sched_setaffinity(0, orders.cores)  # before JAX sizes its thread pools
    keep_compiled_programs()
    _Worker(orders).run()


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _Worker:
    """The threads and connections of one worker."""

    def __init__(self, orders: Orders):
        self.orders, self.inbox = orders, Inbox()
        self.plan = orders.read_plan()
        self.name = WorkerName.parse(orders.name)
        secret = bytes.fromhex(orders.secret)
        self.links = Links(
            orders.name, orders.interface, secret, self.inbox.put_rows, self._lost_peer
        )
        self.control = dial(orders.coordinator, secret, timeout_s=30.0)
        self.control.limit_waiting(receive_s=orders.silence_s, send_s=orders.silence_s)
        self.replica: Replica | None = None
        self._peers: dict[str, tuple[str, int]] = {}
        self._servers: dict[str, str | None] = {}
        self._peers_known = threading.Event()

    def run(self) -> None:
        address = [self.orders.interface, self.links.port]
        self.control.send({"hello": self.orders.name, "address": address, "process": os.getpid()})
        threading.Thread(target=self._listen, name="control", daemon=True).start()
        try:
            self._serve()
        except BaseException as error:  # reported by name: the coordinator decides what follows
            self._fail(error)
        os._exit(0)  # not waiting for computations nobody wants any more

    def _serve(self) -> None:
        runner = self._prepare()
        server = start_server(self.orders.interface) if self.orders.moves == "device" else None
        self._tell(
            {
                "prepared": runner.programs.programs.compiled,
                "server": None if server is None else server.address(),
            }
        )
        self._peers_known.wait()
        names, routes = self._routes()
        to = {str(route.destination) for route in routes if route.source == self.name}
        sources = {str(route.source) for route in routes if route.destination == self.name}
        outlets = {"coordinator": Outlet("coordinator", self.control, self._lost_peer)}
        if server is not None and all(self._servers[peer] for peer in sources):
            secret = bytes.fromhex(self.orders.secret)
            known = {peer: str(self._servers[peer]) for peer in sources}
            moves: Moves = DeviceMoves(server, known, runner.cells.count, secret)
            self.links.close()
        else:
            self.links.connect({peer: self._peers[peer] for peer in to}, sorted(sources))
            outlets |= self.links.outlets
            at_once = jax.default_backend() == "cpu"
            moves = SocketMoves(outlets, self.inbox, at_once=at_once)
        schedule = build_schedule(self.plan, self._config)
        share = worker_share(self.plan, self.name)
        self.replica = Replica(runner, schedule, share, names, moves, outlets, self.inbox)
        self._tell({"ready": True})
        self.replica.run()
        self.links.close()

    def _prepare(self) -> GroupRunner:
        """Read this worker's weights only and compile its programs only."""
        orders, share = self.orders, worker_share(self.plan, self.name)
        if orders.platform is not None:
            jax.config.update("jax_platforms", orders.platform)
        if orders.platform == "cpu":
            jax.config.update("jax_num_cpu_devices", share.group.num_devices)
        model = open_model(orders.model)
        self._config = model.config
        schedule = build_schedule(self.plan, model.config)
        stages = bind_stages(self.plan, model.config, schedule)
        mesh = group_meshes(self.plan.replace(groups=(share.group,), prediction=None))[0]
        dtype = orders.dtype or ("float32" if jax.default_backend() == "cpu" else "bfloat16")
        runner = GroupRunner(
            share.group,
            [stage for stage in stages if stage.owner == self.name.group],
            mesh,
            share.cells,
            shared_programs(model.config, self.plan.workload.context, dtype),
            orders.chunks,
        )
        runner.load(model)
        compile_all(runner.programs.jobs(), lambda what, done, total: None)
        return runner

    def _routes(self) -> tuple[dict[tuple[int, int], list[RowRoute]], list[RowRoute]]:
        owners = build_schedule(self.plan, self._config).owners
        pairs = {
            (source, owners[(index + 1) % len(owners)])
            for index, source in enumerate(owners)
            if source != owners[(index + 1) % len(owners)]
        }
        found = {pair: list(row_routes(self.plan, *pair)) for pair in sorted(pairs)}
        return found, [route for routes in found.values() for route in routes]

    def _listen(self) -> None:
        """Commands and questions of the coordinator; ends the process when it is gone."""
        try:
            while True:
                header, arrays = self.control.receive()
                do = header.get("do")
                if do == "ping":
                    self._tell({"report": self._report().to_dict()})
                elif do == "peers":
                    self._peers = {n: (host, port) for n, (host, port) in header["peers"].items()}
                    self._servers = header["servers"]
                    self._peers_known.set()
                elif do == "drop":
                    self.links.drop()
                else:
                    self.inbox.put_command(header, arrays)
        except ConnectionLostError:
            os._exit(0)
        except BaseException as error:  # nobody else would notice that this thread has ended
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        traceback.print_exc()
        self._tell({"error": f"{type(error).__name__}: {error}"})
        os._exit(1)

    def _report(self) -> Report:
        replica = self.replica
        return Report() if replica is None else replica.current_report()

    def _lost_peer(self, peer: str, reason: str) -> None:
        self._tell({"lost": peer, "reason": reason})

    def _tell(self, header: dict[str, object]) -> None:
        try:
            self.control.send(header)
        except ConnectionLostError:
            os._exit(0)


if __name__ == "__main__":
    main()
