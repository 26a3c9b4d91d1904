"""Commands and snippets in processes of their own that start with everything imported.

A fork of a process that has imported the package but not started JAX is what a fresh interpreter
would be, two seconds sooner: some seventy commands are run by these tests.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weavejax.cli import main

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["weavejax.cli.main"])


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a process ended and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


def run_command(arguments: Sequence[str], cwd: Path, timeout_s: float = 400) -> Result:
    """``weavejax ARGUMENTS`` in ``cwd``."""
    return _run(_command, list(arguments), cwd, timeout_s)


def run_python(text: str, cwd: Path, timeout_s: float = 400) -> Result:
    """``python -c TEXT`` in ``cwd``."""
    return _run(_python, text, cwd, timeout_s)


def _run(work: Callable[[Any], int], payload: Any, cwd: Path, timeout_s: float) -> Result:
    files = [cwd / f".forked-{name}" for name in ("stdout", "stderr")]
    process = _CONTEXT.Process(target=_child, args=(work, payload, cwd, files))
    process.start()
    process.join(timeout_s)
    if process.is_alive():
        process.kill()
        process.join()
        raise TimeoutError(f"{payload} took more than {timeout_s} s")
    stdout, stderr = (file.read_text("utf-8") for file in files)
    assert process.exitcode is not None
    return Result(returncode=process.exitcode, stdout=stdout, stderr=stderr)


def _child(work: Callable[[Any], int], payload: Any, cwd: Path, files: Sequence[Path]) -> None:
    os.chdir(cwd)
    for stream, file in zip((sys.stdout, sys.stderr), files, strict=True):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream.fileno())
    # As in an interpreter whose output is a file, and not a fork of one whose output was not.
    sys.stdout.reconfigure(line_buffering=False)  # type: ignore[union-attr]
    sys.exit(work(payload))


def _command(arguments: list[str]) -> int:
    sys.argv = ["weavejax", *arguments]
    return main(arguments)


def _python(text: str) -> int:
    sys.argv = ["-c"]
    try:
        exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})
    except Exception:
        traceback.print_exc()
        return 1
    return 0
