"""Change a piece of a function's source for the length of a test."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import pytest


def change_source(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], old: str, new: str
) -> None:
    """Replace ``old``, which must occur once, in the body of ``function`` wherever it is used."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{function.__qualname__} has {old!r} {source.count(old)} times"
    namespace: dict[str, Any] = dict(function.__globals__)  # type: ignore[attr-defined]
    exec(compile(source.replace(old, new), function.__qualname__, "exec"), namespace)
    changed = namespace[function.__name__]
    monkeypatch.setattr(function, "__code__", changed.__code__)
    monkeypatch.setattr(function, "__defaults__", changed.__defaults__)
