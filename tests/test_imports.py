"""Imports point one way: a module imports from its own layer or a lower one.

A new module that no entry of LAYERS covers fails here, so that where it belongs is decided once,
by the person who adds it.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Lowest layer first. "a.b" is the module a.b; "a.b.*" is every module below package a.b, without
# its __init__, which re-exports and so belongs with its highest name. The exact entry wins.
LAYERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "facts",
        (
            "weavejax.meshes",
            "weavejax.meshes.*",
            "weavejax.plan",
            "weavejax.plan_parts",
            "weavejax.plan_reading",
            "weavejax.prediction",
            "weavejax.profiles.operator_times",
            "weavejax.profiles.schema",
            "weavejax.progress",
            "weavejax.request",
            "weavejax.span",
        ),
    ),
    ("models", ("weavejax.models", "weavejax.models.*")),
    (
        "pieces",
        (
            "weavejax.compilation_cache",
            "weavejax.default_plans",
            "weavejax.engine_stats",
            "weavejax.fold",
            "weavejax.plan_table",
            "weavejax.profiles",
            "weavejax.profiles.*",
            "weavejax.prompts",
            "weavejax.runtime",
            "weavejax.runtime.*",
            "weavejax.schedule",
            "weavejax.merging",
            "weavejax.sequence",
            "weavejax.slots",
            "weavejax.theory",
            "weavejax.theory_terms",
            "weavejax.trace",
            "weavejax.workers",
            "weavejax.workers.*",
        ),
    ),
    (
        "execution",
        (
            "weavejax.planner.round_trip",
            "weavejax.planner.round_trip_batch",
            "weavejax.planner.simulator",
            "weavejax.planner.steady_state",
            "weavejax.runtime.executor",
            "weavejax.workers.backends",
            "weavejax.workers.executor",
        ),
    ),
    (
        "decisions",
        ("weavejax.engine", "weavejax.planner", "weavejax.planner.*", "weavejax.serve"),
    ),
    (
        "workbench",
        (
            "weavejax.bench",
            "weavejax.bench.*",
            "weavejax.measure",
            "weavejax.measure.*",
            "weavejax.workbench",
            "weavejax.workbench.*",
        ),
    ),
    ("reproduction", ("weavejax.reproduce", "weavejax.reproduce.*")),
    ("interface", ("weavejax",)),
    ("cli", ("weavejax.cli", "weavejax.cli.*")),
)

# Two sides that meet at Plan, the schedule and Span, and import nothing of each other.
SIDES: dict[str, tuple[str, ...]] = {
    "planner": ("weavejax.planner",),
    "runtime": (
        "weavejax.engine",
        "weavejax.engine_stats",
        "weavejax.runtime",
        "weavejax.sequence",
        "weavejax.serve",
        "weavejax.slots",
        "weavejax.trace",
        "weavejax.workers",
    ),
}


def package_folders(root: Path) -> dict[str, Path]:
    """Every package of the distribution with its folder, by setuptools' package-dir mapping."""
    setuptools = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    mapping: Mapping[str, str] = setuptools["package-dir"]
    folders = {}
    for package in setuptools["packages"]:
        prefix = max((name for name in mapping if _inside(package, name)), key=len)
        rest = package.removeprefix(prefix).strip(".")
        folders[package] = (root / mapping[prefix]).joinpath(*filter(None, rest.split(".")))
    return folders


def modules(root: Path) -> dict[str, Path]:
    """Module name → file, for every package listed in pyproject.toml."""
    found = {}
    for package, folder in package_folders(root).items():
        for file in sorted(folder.glob("*.py")):
            found[package if file.stem == "__init__" else f"{package}.{file.stem}"] = file
    return found


def imports(name: str, file: Path, known: set[str]) -> Iterator[tuple[int, str]]:
    """(line, module) of every import of a known module, inside functions too."""
    package = name if file.stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, (base, node.module)))
            named = [f"{base}.{alias.name}" for alias in node.names]
            targets = [target if target in known else base for target in named]
        else:
            continue
        for target in targets:
            if _inside(target, "weavejax"):
                yield node.lineno, target


def layer_of(name: str) -> int | None:
    """The index in LAYERS; the longest entry that covers the module decides."""
    best, length = None, -1
    for index, (_, entries) in enumerate(LAYERS):
        for entry in entries:
            stem = entry.removesuffix(".*")
            covers = name == entry or (entry != stem and name.startswith(stem + "."))
            rank = 2 * len(stem) + (name == entry)
            if covers and rank > length:
                best, length = index, rank
    return best


def violations(root: Path) -> list[str]:
    """What is wrong with the imports below ``root``, one line each."""
    known = modules(root)
    wrong = [
        f"{name}: in no layer; add it to LAYERS in tests/test_imports.py"
        for name in known
        if layer_of(name) is None
    ]
    for name, file in known.items():
        own = layer_of(name)
        for line, target in imports(name, file, set(known)):
            where = f"{name}, line {line}: imports {target}"
            theirs = layer_of(target)
            if target not in known:
                wrong.append(f"{where}, which does not exist")
            elif own is not None and theirs is not None and theirs > own:
                wrong.append(f"{where}, upwards from {LAYERS[own][0]} to {LAYERS[theirs][0]}")
            if {_side(name), _side(target)} == set(SIDES):
                wrong.append(f"{where}, but planner and runtime never import each other")
    return wrong


def _side(name: str) -> str | None:
    return next(
        (side for side, tops in SIDES.items() if any(_inside(name, top) for top in tops)), None
    )


def _inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def test_imports_point_one_way():
    assert len(modules(ROOT)) > 10
    assert violations(ROOT) == []


def test_every_folder_with_an_init_is_a_listed_package():
    tops = {folder for folder in package_folders(ROOT).values()}
    found = {
        init.parent
        for top in ("weavejax", "models", "planner", "meshes", "profiles")
        for init in (ROOT / top).rglob("__init__.py")
    }
    assert found == tops


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small copy of the layout in which every import is right."""
    pyproject = (ROOT / "pyproject.toml").read_text("utf-8")
    (tmp_path / "pyproject.toml").write_text(pyproject)
    for folder in package_folders(tmp_path).values():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text("")
    (tmp_path / "meshes/cluster.py").write_text("import json\n")
    (tmp_path / "planner/search.py").write_text("from weavejax.meshes import cluster\n")
    (tmp_path / "weavejax/engine.py").write_text("from weavejax.meshes.cluster import C\n")
    (tmp_path / "weavejax/cli/main.py").write_text("from weavejax.planner.search import search\n")
    assert violations(tmp_path) == []
    return tmp_path


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (
            "models/planted.py",
            "from weavejax.planner.search import search",
            "weavejax.models.planted, line 1: imports weavejax.planner.search, "
            "upwards from models to decisions",
        ),
        (
            "models/planted.py",
            "def late():\n    import weavejax.cli.main",
            "weavejax.models.planted, line 2: imports weavejax.cli.main, "
            "upwards from models to cli",
        ),
        (
            "meshes/planted.py",
            "from ..models import config",
            "weavejax.meshes.planted, line 1: imports weavejax.models, "
            "upwards from facts to models",
        ),
        (
            "meshes/planted.py",
            "from weavejax import engine",
            "weavejax.meshes.planted, line 1: imports weavejax.engine, "
            "upwards from facts to decisions",
        ),
        (
            "weavejax/engine.py",
            "from weavejax import planner",
            "weavejax.engine, line 1: imports weavejax.planner, "
            "but planner and runtime never import each other",
        ),
        (
            "planner/search.py",
            "import weavejax.engine",
            "weavejax.planner.search, line 1: imports weavejax.engine, "
            "but planner and runtime never import each other",
        ),
        (
            "weavejax/planted.py",
            "",
            "weavejax.planted: in no layer; add it to LAYERS in tests/test_imports.py",
        ),
        (
            "planner/search.py",
            "from weavejax.meshes.gone import x",
            "weavejax.planner.search, line 1: imports weavejax.meshes.gone, which does not exist",
        ),
    ],
)
def test_a_planted_fault_is_found(tree, file, text, message):
    (tree / file).write_text(text + "\n")
    assert violations(tree) == [message]
