"""``weavejax sweep``: one thing changes, every policy is planned again at every value."""

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
from weavejax.workbench import sweep
from weavejax.workbench.cases import SHIPPED_POLICIES
from weavejax.workbench.sweep import AXES

COLUMNS = (
    "axis_value",
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
        "sweep", help="plan again while a context, target, price, network or mix changes"
    )
    parser.add_argument("model", help="preset, or a directory or file with a config.json")
    parser.add_argument("axis", choices=AXES, help="what changes; its last part is its unit")
    parser.add_argument("values", type=float, nargs="+", metavar="VALUE")
    parser.add_argument("--device", help="the type whose price or share changes")
    parser.add_argument("--cluster", required=True, help="h100-sxm:16,l40s:16, or a cluster file")
    parser.add_argument("--context", type=int, required=True, metavar="TOKENS")
    parser.add_argument("--tpot-slo-ms", type=float, required=True, metavar="MS")
    parser.add_argument("--policy", nargs="+", default=list(SHIPPED_POLICIES), metavar="NAME")
    add_policy_module(parser)
    parser.add_argument("--profile", help="a profile file; the shipped measured one by default")
    add_limits(parser)
    add_table_output(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command: 0, or 1 when no value has a plan."""
    import_policies(options.policy_module)
    with user_errors():
        table = sweep(
            options.model,
            options.cluster,
            options.context,
            options.tpot_slo_ms / 1e3,
            options.axis,
            options.values,
            options.policy,
            device=options.device,
            limits=read_limits(options),
            profile=options.profile,
            jobs=options.jobs,
        )
    show_table(table, COLUMNS, options)
    return int(all(row["status"] != "ok" for row in table))
