"""``weavejax accuracy``: predicted beside measured round trips of many plans, in one table."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from rich.table import Table

from weavejax.cli.common import UsageError, check_output, output_console, user_errors
from weavejax.cli.measuring import set_machine
from weavejax.measure.accuracy import Accuracy, measure_accuracy
from weavejax.measure.suite import MODELS, settings
from weavejax.progress import show_progress


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Register the command."""
    parser = commands.add_parser(
        "accuracy", help="how well round trips are predicted, over 24 plans on this machine"
    )
    parser.add_argument(
        "--settings",
        type=int,
        nargs="+",
        metavar="N",
        help=f"only these, 0 to {len(settings()) - 1}: (model, context) pairs",
    )
    parser.add_argument("--rounds", type=int, default=25, metavar="N")
    parser.add_argument(
        "--processes",
        action="store_true",
        help="every group a process on its own core; plans of more groups than cores are left out",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--profile", metavar="FILE", help="keep the measured profile")
    parser.add_argument(
        "--cores",
        type=int,
        nargs="+",
        metavar="CORE",
        help="CPU cores to run on, one by default: groups of one process then take turns",
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    every = settings()
    chosen = range(len(every)) if options.settings is None else options.settings
    if options.rounds < 1 or not set(chosen) <= set(range(len(every))):
        raise UsageError(
            f"--rounds must be at least 1 and --settings lie in 0..{len(every) - 1}, "
            f"got {options.rounds} and {list(chosen)}"
        )
    check_output(options.profile)
    cores = options.cores or sorted(os.sched_getaffinity(0))
    if not options.processes:
        cores = options.cores or cores[-1:]
    options.cores = cores[-1:] if options.processes else cores
    # a device for each group, so that moves are real; groups that are processes have their own
    options.cpu_devices = 1 if options.processes else 3
    set_machine(options)
    with user_errors(), show_progress() as report:
        found, profile = measure_accuracy(
            [every[number] for number in chosen],
            MODELS,
            rounds=options.rounds,
            cores=cores if options.processes else None,
            progress=report,
        )
        if options.profile:
            profile.save(Path(options.profile))
    if options.json:
        print(json.dumps(found.to_dict(), indent=1))
    else:
        _print(found)
    return 0


def _print(found: Accuracy) -> None:
    console = output_console()
    console.print(table(found))
    console.print(f"mean absolute error {found.mean_error:.1%} over {len(found.rows)} plans")
    if found.trace_overhead is not None:
        console.print(f"tracing lengthens an iteration by {found.trace_overhead:+.1%} (median)")
    for choice in found.choices():
        console.print(
            f"{choice.model} at {choice.context}: of {choice.plans} plans the profile picks "
            f"{choice.chosen}, {choice.slower:+.1%} beside the fastest ({choice.fastest})"
        )


def table(found: Accuracy) -> Table:
    """One row per plan."""
    title = "round trips, predicted and measured"
    shown = Table(title=title, title_justify="left")
    for name in ("model", "context", "plan", "microbatches"):
        shown.add_column(name)
    for name in ("predicted ms", "measured ms", "error", "spread", "traced"):
        shown.add_column(name, justify="right")
    for row in found.rows:
        shown.add_row(
            row.model,
            str(row.context),
            row.plan,
            str(row.microbatches),
            f"{1e3 * row.predicted_s:.1f}",
            f"{1e3 * row.measured_s:.1f}",
            f"{row.error:+.1%}",
            f"{row.spread:.1%}",
            "" if row.trace_overhead is None else f"{row.trace_overhead:+.1%}",
        )
    return shown
