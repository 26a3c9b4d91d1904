"""What commands share: opening models and plans, and turning their errors into messages."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
from rich.console import Console

from weavejax.workers.failure import WorkerError

MOST_CPU_DEVICES = 1024
"""JAX takes seconds to make hundreds of virtual devices, and minutes for many thousands."""
PIPE_WIDTH = 120
"""Columns of tables where the output is no terminal and has no width of its own."""


class UsageError(Exception):
    """What was asked for cannot be done; the message goes to the user without a traceback."""


def output_console() -> Console:
    """A console on standard output, wide enough for tables when it is a file or a pipe."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_WIDTH)


@contextmanager
def user_errors() -> Iterator[None]:
    """Turn errors about the user's input into :class:`UsageError`."""
    try:
        yield
    except (ValueError, TypeError, OSError, WorkerError) as error:
        raise UsageError(str(error)) from error


def add_dtype(parser: argparse.ArgumentParser) -> None:
    """``--dtype``: ``None`` leaves it to the device."""
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="of weights, caches and activations (default: float32 on CPUs, bfloat16 elsewhere)",
    )


def add_cpu_devices(parser: argparse.ArgumentParser) -> None:
    """The option that :func:`set_cpu_devices` reads."""
    parser.add_argument(
        "--cpu-devices",
        type=int,
        metavar="N",
        help="run on N virtual CPU devices instead of the accelerators there are",
    )


def set_cpu_devices(count: int | None) -> None:
    """Make JAX use ``count`` virtual CPU devices. Must come before JAX's first use.

    Raises:
        UsageError: a count below 1, or JAX already runs.
    """
    if count is None:
        return
    if not 1 <= count <= MOST_CPU_DEVICES:
        raise UsageError(f"--cpu-devices must lie in 1..{MOST_CPU_DEVICES}, got {count}")
    try:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError as error:
        raise UsageError(
            f"JAX already runs with {jax.device_count()} devices; "
            f"start a new process to get {count}"
        ) from error


def check_output(path: str | None) -> None:
    """Refuse a file that cannot be written, before the work that would fill it.

    Raises:
        UsageError: a directory, a missing folder, or no permission.
    """
    if path is None:
        return
    target = Path(path)
    if target.is_dir():
        raise UsageError(f"the output must be a file, got the directory {path!r}")
    if not target.absolute().parent.is_dir():
        raise UsageError(f"the output's folder must exist, got {path!r}")
    if not os.access(target if target.exists() else target.absolute().parent, os.W_OK):
        raise UsageError(f"the output must be writable, got {path!r}")
