"""``weavejax compare``: policies side by side over contexts and targets."""

from __future__ import annotations

import argparse
from typing import Any

from weavejax.cli.common import user_errors
from weavejax.cli.limits import add_limits, read_limits
from weavejax.cli.policies import (
    add_policy_module,
    add_table_output,
    import_policies,
    show_table,
)
from weavejax.workbench import compare
from weavejax.workbench.cases import SHIPPED_POLICIES

COLUMNS = (
    "context_tokens",
    "tpot_slo_ms",
    "policy",
    "usd_per_million_tokens",
    "gain_over_colocated",
    "round_trip_time_ms",
    "groups",
    "status",
)


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Register the command."""
    parser = commands.add_parser(
        "compare", help="the cheapest plan of every policy, over contexts and targets"
    )
    parser.add_argument("model", help="preset, or a directory or file with a config.json")
    parser.add_argument("--cluster", required=True, help="h100-sxm:16,l40s:16, or a cluster file")
    parser.add_argument("--context", type=int, nargs="+", required=True, metavar="TOKENS")
    parser.add_argument("--tpot-slo-ms", type=float, nargs="+", required=True, metavar="MS")
    parser.add_argument(
        "--policy",
        nargs="+",
        default=list(SHIPPED_POLICIES),
        metavar="NAME",
        help="default: " + " ".join(SHIPPED_POLICIES),
    )
    add_policy_module(parser)
    parser.add_argument("--profile", help="a profile file; the shipped measured one by default")
    add_limits(parser)
    add_table_output(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command: 0, or 1 when no setting has a plan."""
    import_policies(options.policy_module)
    with user_errors():
        table = compare(
            options.model,
            options.cluster,
            options.context,
            [ms / 1e3 for ms in options.tpot_slo_ms],
            options.policy,
            limits=read_limits(options),
            profile=options.profile,
            jobs=options.jobs,
        )
    show_table(table, COLUMNS, options)
    return int(all(row["status"] != "ok" for row in table))
