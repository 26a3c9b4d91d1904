"""Options of commands that search: policies from files, limits, and where a table goes."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from weavejax.cli.common import UsageError, user_errors
from weavejax.workbench import Table


def add_policy_module(parser: argparse.ArgumentParser) -> None:
    """The option that :func:`import_policies` reads."""
    parser.add_argument(
        "--policy-module",
        action="append",
        default=[],
        metavar="MODULE",
        help="FILE.py or a module that registers policies (wj.register_policy); may be repeated",
    )


def import_policies(modules: Iterable[str]) -> None:
    """Import each module, or run each file once, so that the policies it registers have names.

    Raises:
        UsageError: no such file or module, or it raises.
    """
    for name in modules:
        try:
            _import(name)
        except Exception as error:
            raise UsageError(
                f"--policy-module {name}: {type(error).__name__}: {error}{_hint(name)}"
            ) from error


def _import(name: str) -> None:
    """Import what is not imported yet: a file has one module, however it was named."""
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise FileNotFoundError("there is no such file")
        file = Path(name).resolve()
        if file in _imported_files():
            return
        module_name = f"_weavejax_policies_{len(sys.modules)}_{file.stem}"
        spec = importlib.util.spec_from_file_location(module_name, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[module_name]
            raise
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or Path(spec.origin).resolve() not in _imported_files():
        importlib.import_module(name)


def _imported_files() -> set[Path]:
    names = [getattr(module, "__file__", None) for module in tuple(sys.modules.values())]
    return {Path(name).resolve() for name in names if isinstance(name, str)}


def _hint(name: str) -> str:
    """The file that was meant where a module's name was given."""
    return f" (did you mean {name}.py?)" if Path(f"{name}.py").is_file() else ""


def add_table_output(parser: argparse.ArgumentParser) -> None:
    """Where a table and its picture go."""
    parser.add_argument("--csv", metavar="FILE", help="write every column as CSV")
    parser.add_argument("--markdown", metavar="FILE", help="write the printed columns as Markdown")
    parser.add_argument("--plot", metavar="FILE", help="draw into a .svg, .png or .pdf file")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes; every core by default")


def show_table(table: Table, columns: tuple[str, ...], options: argparse.Namespace) -> None:
    """Print some columns, then write the files that were asked for."""
    Console(soft_wrap=True).print(table.to_markdown(columns=columns), highlight=False, markup=False)
    broken = {row["reason"]: None for row in table if row.get("status") == "policy"}
    for reason in broken:
        print(reason, file=sys.stderr)
    with user_errors():
        if options.csv:
            table.to_csv(options.csv)
        if options.markdown:
            table.to_markdown(options.markdown, columns=columns)
        if options.plot:
            try:
                table.plot(options.plot)
            except ImportError as error:
                raise UsageError(str(error)) from error
