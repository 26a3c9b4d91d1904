"""Options of commands that can run device groups as worker processes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, get_args

from weavejax.workers.backends import make_launcher
from weavejax.workers.launch import Launcher
from weavejax.workers.options import MoveKind, WorkerOptions


def add_backend(parser: argparse.ArgumentParser, *, default: str, choices: tuple[str, ...]) -> None:
    """The options that :func:`backend_settings` reads."""
    parser.add_argument(
        "--backend",
        choices=choices,
        default=default,
        help="where device groups run: inside this process, or as processes that this command or "
        f"Ray starts (default: {default})",
    )
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="of a running Ray cluster; by default one is started on this machine",
    )
    parser.add_argument(
        "--interface",
        default=WorkerOptions.interface,
        metavar="ADDRESS",
        help="address of this host that workers connect to (default: %(default)s, this machine)",
    )
    parser.add_argument(
        "--failure-timeout",
        type=float,
        default=WorkerOptions.failure_timeout_s,
        metavar="SECONDS",
        help="silence or standstill that counts as failure (default: %(default)g)",
    )
    parser.add_argument(
        "--restarts",
        type=int,
        default=WorkerOptions.restarts,
        metavar="N",
        help="times that failed workers are started again (default: %(default)d)",
    )
    parser.add_argument(
        "--moves",
        choices=get_args(MoveKind),
        default=WorkerOptions.moves,
        help="how rows travel between workers (default: %(default)s)",
    )
    parser.add_argument(
        "--platform", metavar="NAME", help="JAX platform of the workers, such as cpu"
    )


def worker_options(options: argparse.Namespace) -> WorkerOptions:
    """How workers are watched."""
    return WorkerOptions(
        interface=options.interface,
        failure_timeout_s=options.failure_timeout,
        restarts=options.restarts,
        moves=options.moves,
        platform=options.platform,
    )


def backend_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Arguments of :func:`weavejax.serve`."""
    if options.backend == "in-process":
        return {"address": options.address} if options.address else {}
    return {
        "backend": options.backend,
        "address": options.address,
        "workers": worker_options(options),
    }


def launcher_maker(options: argparse.Namespace) -> Callable[[], Launcher]:
    """A function that makes the launcher of one engine."""
    return lambda: make_launcher(options.backend, options.address, worker_options(options))
