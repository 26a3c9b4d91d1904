"""``weavejax profile``: measure this machine, or see what a profile holds and how well it fits."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.table import Table

from weavejax.cli.common import UsageError, check_output, output_console, user_errors
from weavejax.cli.measuring import add_machine, add_plan, open_model, open_plan, set_machine
from weavejax.measure.profiling import Grid, profile_model
from weavejax.plan import Parallelism
from weavejax.profiles import load_profile
from weavejax.profiles.holdout import format_report, holdout_report
from weavejax.profiles.paper_points import format_points, paper_points
from weavejax.profiles.schema import ProfileData
from weavejax.progress import show_progress


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Register the command."""
    parser = commands.add_parser(
        "profile", help="measure a model's operators here, or inspect a latency profile"
    )
    parser.add_argument(
        "model",
        nargs="?",
        default="nvidia-measured",
        metavar="MODEL|PROFILE",
        help="with -o a model to measure; else a shipped profile or a file to look at",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "-o", "--output", metavar="FILE", help="measure, and keep the profile in a .json or .npz"
    )
    what.add_argument(
        "--fit", action="store_true", help="fit the analytic model to a measured profile file"
    )
    what.add_argument(
        "--holdout", action="store_true", help="error on grid lines left out, per device and axis"
    )
    what.add_argument(
        "--paper-points", action="store_true", help="the paper's two latencies beside the profile's"
    )
    what.add_argument(
        "--rebuild", metavar="FILE", help="rebuild the shipped tables from aiconfigurator-core"
    )
    parser.add_argument(
        "--plan",
        metavar="colocated|afd|cad|FILE",
        help="measure what this plan needs: its rows, context and parallelism",
    )
    parser.add_argument("--rows", type=int, nargs="+", metavar="N", help="rows of a microbatch")
    parser.add_argument("--contexts", type=int, nargs="+", metavar="TOKENS")
    parser.add_argument("--repeats", type=int, default=8, metavar="N")
    parser.add_argument("--device", metavar="NAME", help="what plans call such a device")
    add_plan(parser)
    add_machine(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    console = output_console()
    if options.output:
        return _measure(options)
    with user_errors():
        if options.rebuild:
            return _rebuild(options.rebuild)
        profile = load_profile(options.model)
        if options.fit:
            return _fit(options.model)
    if options.holdout:
        print(format_report(holdout_report(profile.data)))
    elif options.paper_points:
        print(format_points(paper_points(profile)))
    else:
        console.print(contents(profile.name, profile.hash, profile.data))
    return 0


def _measure(options: argparse.Namespace) -> int:
    set_machine(options)
    check_output(options.output)
    out = Path(options.output)
    if out.suffix not in (".json", ".npz"):
        raise UsageError(f"-o must end in .json or .npz, got {options.output!r}")
    with user_errors():
        model = open_model(options)
        grid, device = _grid(options, model)
        with show_progress() as report:
            profile = profile_model(
                model, grid, device=device, repeats=options.repeats, out=out, progress=report
            )
    output_console().print(contents(profile.name, profile.hash, profile.data))
    return 0


def _grid(options: argparse.Namespace, model: Any) -> tuple[Grid, str]:
    """What to measure, and the name of the device."""
    rows, contexts = options.rows, options.contexts
    cuts: tuple[Parallelism, ...] = (Parallelism(),)
    device = jax.devices()[0].platform
    if options.plan:
        plan = open_plan(options, model)
        rows = rows or [group.resident_batch // plan.microbatches for group in plan.groups]
        contexts = contexts or [plan.workload.context]
        cuts = tuple(dict.fromkeys(group.parallelism for group in plan.groups))
        device = plan.groups[0].device
    most = min(model.config.max_position, 512)
    grid = Grid(
        rows=tuple(rows or (1, 2, 4, 8)),
        contexts=tuple(contexts or sorted({min(128, most), most})),
        parallelisms=cuts,
    )
    if min(*grid.rows, *grid.contexts, options.repeats) < 1:
        raise ValueError("rows, contexts and repeats must be at least 1")
    return grid, options.device or device


def contents(name: str, digest: str, data: ProfileData) -> Table:
    """One row per device and kernel or timed operator: how many points, and from where."""
    table = Table(title=f"profile {name}, hash {digest[:12]}", title_justify="left")
    for column in ("device", "kernel", "shapes", "points", "measured by"):
        table.add_column(column)
    for device in data.devices.values():
        for kernel, measured in device.tables.items():
            points = f"{np.isfinite(measured.time_s).sum():,}"
            shapes = f"{len(measured.shapes):,}"
            table.add_row(device.device, kernel, shapes, points, measured.origin)
        facts = device.attributes
        origin = f"JAX {facts.get('jax')}, {facts.get('dtype')}, {facts.get('date')}"
        for timed in device.operators.values():
            points = f"{np.isfinite(timed.time_s).all(-1).sum():,}"
            table.add_row(device.device, timed.name, "1", points, origin)
    return table


def _rebuild(out: str) -> int:
    from weavejax.profiles import importer

    return importer.main([str(Path(out))])


def _fit(path: str) -> int:
    from weavejax.profiles.fit_operators import fit_profile

    profile, lines = fit_profile(load_profile(path))
    if not Path(path).exists():
        raise ValueError(f"--fit needs a measured profile file, got {path!r}")
    profile.save(path)
    for line in lines:
        print(line)
    return 0
