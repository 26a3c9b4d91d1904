"""``weavejax profile``: what a profile holds, how well it interpolates, and how to rebuild it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from weavejax.cli.common import output_console, user_errors
from weavejax.profiles import load_profile
from weavejax.profiles.holdout import format_report, holdout_report
from weavejax.profiles.paper_points import format_points, paper_points
from weavejax.profiles.schema import ProfileData


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Register the command."""
    parser = commands.add_parser("profile", help="inspect, check or rebuild a latency profile")
    parser.add_argument(
        "profile", nargs="?", default="nvidia-measured", help="a shipped profile or a file"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--holdout", action="store_true", help="error on grid lines left out, per device and axis"
    )
    what.add_argument(
        "--paper-points", action="store_true", help="the paper's two latencies beside the profile's"
    )
    what.add_argument(
        "--rebuild", metavar="FILE", help="rebuild the shipped tables from aiconfigurator-core"
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    console = output_console()
    with user_errors():
        if options.rebuild:
            return _rebuild(options.rebuild)
        profile = load_profile(options.profile)
    if options.holdout:
        print(format_report(holdout_report(profile.data)))
    elif options.paper_points:
        print(format_points(paper_points(profile)))
    else:
        console.print(contents(profile.name, profile.hash, profile.data))
    return 0


def contents(name: str, digest: str, data: ProfileData) -> Table:
    """One row per device and kernel: how many points, and from where."""
    table = Table(title=f"profile {name}, hash {digest[:12]}", title_justify="left")
    for column in ("device", "kernel", "shapes", "points", "measured by"):
        table.add_column(column)
    for device in data.devices.values():
        for kernel, measured in device.tables.items():
            points = f"{np.isfinite(measured.time_s).sum():,}"
            shapes = f"{len(measured.shapes):,}"
            table.add_row(device.device, kernel, shapes, points, measured.origin)
    return table


def _rebuild(out: str) -> int:
    from weavejax.profiles import importer

    return importer.main([str(Path(out))])
