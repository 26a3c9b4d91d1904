"""``weavejax validate``: a plan's prediction beside what it does on the devices at hand."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from weavejax.cli.common import (
    UsageError,
    check_output,
    output_console,
    user_errors,
)
from weavejax.cli.measuring import add_machine, add_plan, open_model, open_plan, set_machine
from weavejax.measure.picture import draw_timelines
from weavejax.measure.validation import Pair, Validation, validate
from weavejax.profiles import load_profile
from weavejax.progress import show_progress
from weavejax.span import write_chrome_trace


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Register the command."""
    parser = commands.add_parser("validate", help="run a plan and compare it with its prediction")
    parser.add_argument("plan", metavar="colocated|afd|cad|FILE")
    parser.add_argument("--model", required=True, help="preset, directory, hub id or .gguf file")
    parser.add_argument(
        "--profile", required=True, metavar="FILE", help="what weavejax profile measured here"
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.1,
        metavar="PART",
        help="exit with 1 when round trip or memory is off by more (default 0.1)",
    )
    parser.add_argument("--repeats", type=int, default=10, metavar="N")
    parser.add_argument("--picture", metavar="FILE", help="both timelines, .svg or .png")
    parser.add_argument("--trace", metavar="FILE", help="write the measured spans for Perfetto")
    add_plan(parser)
    add_machine(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command: 0 within the tolerance, 1 outside."""
    set_machine(options)
    for path in (options.picture, options.trace):
        check_output(path)
    if not options.tolerance > 0:
        raise UsageError(f"--tolerance must be above 0, got {options.tolerance}")
    with user_errors():
        profile = load_profile(options.profile)
        model = open_model(options)
        plan = open_plan(options, model)
        with show_progress() as report:
            found = validate(
                model,
                plan,
                profile,
                oversubscribe=True,
                repeats=options.repeats,
                progress=report,
            )
    if options.picture:
        draw_timelines(found, options.picture)
    if options.trace:
        write_chrome_trace(options.trace, found.measured_spans)
    console = output_console()
    for table in tables(found):
        console.print(table)
    console.print(
        f"{found.round_trip.note}; round trips spread {found.spread:.1%}; "
        f"tracing costs {found.trace_overhead:+.1%}"
    )
    good = found.within(options.tolerance)
    console.print(f"{'within' if good else 'outside'} the tolerance of {options.tolerance:.0%}")
    return 0 if good else 1


def tables(found: Validation) -> list[Table]:
    """Round trip, groups and memory; stages; moves."""
    top = _table("predicted beside measured", "what")
    _add(top, (found.round_trip,), 1e3, "ms")
    _add(top, found.occupancy, 100, "% busy")
    _add(top, found.memory, 1e-6, "MB")
    parts = [top, _table("stages, ms for one microbatch", "operators")]
    _add(parts[-1], _together(found.stages), 1e3, "ms")
    if found.moves:
        parts.append(_table("moves, ms for one microbatch", "boundary"))
        _add(parts[-1], _together(found.moves), 1e3, "ms")
    return parts


def _table(title: str, first: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for name in ("predicted", "measured", "error"):
        table.add_column(name, justify="right")
    table.add_column("")
    return table


def _add(table: Table, pairs: Sequence[Pair], scale: float, unit: str) -> None:
    for pair in pairs:
        figures = [f"{scale * value:.3f} {unit}" for value in (pair.predicted, pair.measured)]
        table.add_row(pair.name, *figures, f"{pair.error:+.1%}", pair.note)


def _together(pairs: Sequence[Pair]) -> list[Pair]:
    """Stages or moves that are predicted alike in one row, with the mean of what was measured."""
    groups: dict[tuple[float, str], list[Pair]] = {}
    for pair in pairs:
        groups.setdefault((pair.predicted, pair.note), []).append(pair)
    rows = []
    for (predicted, note), members in groups.items():
        many = f" and {len(members) - 1} more" if len(members) > 1 else ""
        measured = sum(pair.measured for pair in members) / len(members)
        name = f"{members[0].name}{many}"
        rows.append(Pair(name=name, predicted=predicted, measured=measured, note=note))
    return rows
