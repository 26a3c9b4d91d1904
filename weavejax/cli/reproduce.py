"""``weavejax reproduce``: the paper's evaluation, ours beside its numbers."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from weavejax.cli.common import user_errors
from weavejax.progress import show_progress
from weavejax.reproduce import FIGURES, reproduce, write_report


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Register the command."""
    parser = commands.add_parser(
        "reproduce", help="the paper's figures from the shipped profile, beside its numbers"
    )
    parser.add_argument(
        "figures",
        nargs="+",
        choices=(*FIGURES, "all"),
        metavar="FIGURE",
        help=", ".join(FIGURES) + " or all",
    )
    parser.add_argument(
        "-o", "--output", default="reproduction", metavar="DIR", help="default: reproduction"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="processes; every core by default")
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    names = tuple(FIGURES) if "all" in options.figures else tuple(dict.fromkeys(options.figures))
    console = Console(soft_wrap=True)
    results = []
    with user_errors(), show_progress() as report:
        for figure, seconds in reproduce(names, jobs=options.jobs, progress=report):
            figure.write(options.output)
            results.append((figure, seconds))
            console.print(f"[bold]{figure.title}[/bold] ({seconds:.1f} s)")
            console.print(figure.statement, highlight=False, markup=False)
            if len(names) == 1:
                for title, table in figure.sections:
                    print(f"\n{title}\n\n{table.to_markdown()}")
            console.print(f"  {options.output}/{figure.name}.csv .md .svg .png\n", highlight=False)
        path = write_report(results, options.output)
    console.print(f"{len(results)} figures in {path}", highlight=False)
    return 0
