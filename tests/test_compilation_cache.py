"""Compiled programs on disk: where, and that a second process finds them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weavejax.compilation_cache import default_directory, keep_compiled_programs

COMPILES = """
import logging, jax
from weavejax.compilation_cache import keep_compiled_programs
jax.numpy.zeros(3).block_until_ready()  # JAX has decided by now that it has no cache
print(keep_compiled_programs())
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name))
jax.jit(lambda x: x * 3 + 1)(jax.numpy.arange(5.0)).block_until_ready()
print(events.count("/jax/compilation_cache/cache_hits") > 0)
"""


def run(home: Path, **variables: str) -> list[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    environment = kept | {"XDG_CACHE_HOME": str(home), "JAX_PLATFORMS": "cpu"} | variables
    command = [sys.executable, "-c", COMPILES]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return result.stdout.split()


@pytest.mark.slow
def test_a_second_process_finds_what_the_first_compiled(tmp_path: Path) -> None:
    place, found = run(tmp_path)
    assert Path(place).is_relative_to(tmp_path / "weavejax" / "xla") and found == "False"
    assert list(Path(place).iterdir())
    assert run(tmp_path) == [place, "True"]


@pytest.mark.slow
def test_small_programs_are_kept_where_the_user_wants_them(tmp_path: Path) -> None:
    """JAX's own threshold is a second, which no stage program takes."""
    chosen = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "chosen")}
    assert run(tmp_path, **chosen) == [str(tmp_path / "chosen"), "False"]
    assert run(tmp_path, **chosen) == [str(tmp_path / "chosen"), "True"]
    slow = chosen | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "60"}
    slow["JAX_COMPILATION_CACHE_DIR"] = str(tmp_path / "slow")
    assert [run(tmp_path, **slow)[1] for _ in range(2)] == ["False", "False"]


def test_a_cache_of_the_user_is_left_alone() -> None:
    configured = os.environ["JAX_COMPILATION_CACHE_DIR"]  # that of the whole test run
    assert keep_compiled_programs("/elsewhere") == Path(configured)


def test_no_place_to_write_means_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import jax

    configured = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    try:
        (tmp_path / "file").touch()
        assert keep_compiled_programs(tmp_path / "file" / "below") is None
        assert jax.config.jax_compilation_cache_dir is None
    finally:
        jax.config.update("jax_compilation_cache_dir", configured)


def test_processors_do_not_share_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here = default_directory()
    assert here == default_directory() and here.parent == tmp_path / "weavejax" / "xla"
    monkeypatch.setattr("weavejax.compilation_cache._processor", lambda: "another")
    assert default_directory() != here
