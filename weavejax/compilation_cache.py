"""Compiled programs kept on disk, so that a second start does not compile them again."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache


def keep_compiled_programs(directory: str | Path | None = None) -> Path | None:
    """Make JAX keep what it compiles from now on.

    A place that the user configured (``JAX_COMPILATION_CACHE_DIR`` or ``jax.config``) stays, and
    ``JAX_ENABLE_COMPILATION_CACHE=0`` turns any off. JAX's own thresholds leave out what compiles
    within a second; stage programs are small and many, so that they go unless the user set them.

    Args:
        directory: where; :func:`default_directory` by default.

    Returns:
        The place in use; ``None`` where there is none to write to.

    Examples:
        >>> keep_compiled_programs() == keep_compiled_programs()  # the second call changes nothing
        True
    """
    configured: str | None = getattr(jax.config, "jax_compilation_cache_dir", None)
    if configured:
        _keep_small_programs()
        return Path(configured)
    place = Path(directory) if directory is not None else default_directory()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:  # a read-only home: compile every time
        return None
    wanted = getattr(jax.config, "jax_enable_compilation_cache", True)
    if not wanted or not os.access(place, os.W_OK):
        return None
    jax.config.update("jax_compilation_cache_dir", str(place))
    _keep_small_programs()
    compilation_cache.reset_cache()  # JAX decides once, at its first compilation, if it has one
    return place


def _keep_small_programs() -> None:
    """Lower JAX's thresholds where they are what JAX came with."""
    for name, theirs, ours in (
        ("jax_persistent_cache_min_compile_time_secs", 1.0, 0.0),
        ("jax_persistent_cache_min_entry_size_bytes", 0, -1),
    ):
        if getattr(jax.config, name) == theirs:
            jax.config.update(name, ours)


def default_directory() -> Path:
    """``~/.cache/weavejax/xla/...``, one folder per kind of processor.

    CPU programs use the instructions of the machine that compiled them, and a home directory may
    be shared between machines.
    """
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    digest = hashlib.sha256(_processor().encode()).hexdigest()[:8]
    return Path(root) / "weavejax" / "xla" / f"{platform.machine()}-{digest}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:  # not Linux
        return platform.processor()
    return "".join(sorted({x for x in lines if x.startswith(("model name", "flags", "Features"))}))
