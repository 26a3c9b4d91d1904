"""``weavejax what-if``: break-even prices, cost of a target, where to split, spread of lengths."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from rich.console import Console

from weavejax.cli.common import UsageError, user_errors
from weavejax.cli.limits import add_limits, read_limits
from weavejax.cli.policies import add_table_output, show_table
from weavejax.workbench import sweep
from weavejax.workbench.length_files import load_lengths
from weavejax.workbench.lengths import Lengths, plan_for_lengths
from weavejax.workbench.whatif import price_break_even, price_curve, region

SLO_STEPS = (0.5, 0.7, 1.0, 1.4, 2.0, 4.0)
"""Targets of the cost curve, in parts of the one given."""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Register the command and its questions."""
    parser = commands.add_parser(
        "what-if", help="break-even prices, the cost of a target, where to split, length spread"
    )
    questions = parser.add_subparsers(dest="question", required=True, metavar="QUESTION")
    price = _question(questions, "price", "below which price a device type takes part", _price)
    price.add_argument("--device", required=True, help="the type whose price is asked for")
    _one_setting(price)
    slo = _question(questions, "slo", "what a tighter or looser target costs", _slo)
    _one_setting(slo)
    split = _question(questions, "region", "where two or more groups beat one", _region)
    split.add_argument("--context", type=int, nargs="+", required=True, metavar="TOKENS")
    split.add_argument("--tpot-slo-ms", type=float, nargs="+", required=True, metavar="MS")
    lengths = _question(questions, "lengths", "what a spread of contexts costs", _lengths)
    source = lengths.add_mutually_exclusive_group(required=True)
    source.add_argument("--lengths", metavar="FILE", help="numbers, Azure CSV or ShareGPT JSON")
    source.add_argument(
        "--lognormal", nargs=2, type=float, metavar=("MEAN", "SIGMA"), help="tokens, log spread"
    )
    lengths.add_argument("--rescale-to", type=float, metavar="TOKENS", help="mean to scale to")
    lengths.add_argument("--tail", type=float, default=0.99, help="of batches; default: 0.99")
    lengths.add_argument("--tpot-slo-ms", type=float, required=True, metavar="MS")
    return parser


def _question(
    questions: Any, name: str, text: str, answer: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser = questions.add_parser(name, help=text, description=text)
    parser.add_argument("model", help="preset, or a directory or file with a config.json")
    parser.add_argument("--cluster", required=True, help="h100-sxm:16,l40s:16, or a cluster file")
    parser.add_argument("--profile", help="a profile file; the shipped measured one by default")
    add_limits(parser)
    add_table_output(parser)
    parser.set_defaults(answer=answer)
    return parser


def _one_setting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--context", type=int, required=True, metavar="TOKENS")
    parser.add_argument("--tpot-slo-ms", type=float, required=True, metavar="MS")


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    with user_errors():
        return options.answer(options)


def _price(options: argparse.Namespace) -> int:
    setting = (options.model, options.cluster, options.context, options.tpot_slo_ms / 1e3)
    shared = {"limits": read_limits(options), "profile": options.profile}
    even = price_break_even(*setting, options.device, **shared)
    Console(soft_wrap=True).print(even.describe(), highlight=False)
    if options.csv or options.markdown or options.plot:
        table = sweep(
            *setting,
            "usd_per_hour",
            price_curve(even),
            ["colocated", "weave"],
            device=options.device,
            jobs=options.jobs,
            **shared,
        )
        columns = ("axis_value", "policy", "usd_per_million_tokens", "groups", "status")
        show_table(table, columns, options)
    return 0


def _slo(options: argparse.Namespace) -> int:
    slo_s = options.tpot_slo_ms / 1e3
    table = sweep(
        options.model,
        options.cluster,
        options.context,
        slo_s,
        "tpot_slo_s",
        [round(slo_s * step, 6) for step in SLO_STEPS],
        limits=read_limits(options),
        profile=options.profile,
        jobs=options.jobs,
    )
    columns = ("tpot_slo_ms", "policy", "usd_per_million_tokens", "groups", "status")
    show_table(table, columns, options)
    return 0


def _region(options: argparse.Namespace) -> int:
    table = region(
        options.model,
        options.cluster,
        options.context,
        [ms / 1e3 for ms in options.tpot_slo_ms],
        limits=read_limits(options),
        profile=options.profile,
        jobs=options.jobs,
    )
    show_table(table, table.columns[2:], options)
    return 0


def _lengths(options: argparse.Namespace) -> int:
    if options.lognormal:
        lengths = Lengths.lognormal(*options.lognormal)
    else:
        lengths = load_lengths(options.lengths)
    if options.rescale_to:
        lengths = lengths.rescaled(options.rescale_to)
    if options.plot:
        raise UsageError("--plot has nothing to draw for lengths; use --csv or --markdown")
    answer = plan_for_lengths(
        options.model,
        options.cluster,
        lengths,
        options.tpot_slo_ms / 1e3,
        tail=options.tail,
        limits=read_limits(options),
        profile=options.profile,
    )
    Console(soft_wrap=True).print(answer.describe(), highlight=False)
    show_table(answer.table, answer.table.columns, options)
    return 0
