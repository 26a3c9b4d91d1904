"""The examples in docstrings run."""

from __future__ import annotations

import doctest
import importlib
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def modules_with_examples() -> list[str]:
    """Names of the modules whose file holds a prompt."""
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    names = []
    for package in setuptools["packages"]:
        folder = setuptools["package-dir"].get(package, package.replace(".", "/"))
        for file in sorted((ROOT / folder).glob("*.py")):
            if ">>> " in file.read_text("utf-8"):
                names.append(package if file.stem == "__init__" else f"{package}.{file.stem}")
    return names


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_give_what_they_show(name):
    module = importlib.import_module(name)
    # The installed module must be this checkout's, or the examples of another one would run.
    assert module.__file__ is not None and Path(module.__file__).is_relative_to(ROOT)
    results = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert results.attempted > 0
    assert results.failed == 0
