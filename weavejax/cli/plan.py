"""``weavejax plan``: the cheapest plan of a grid, proven."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from weavejax.cli.common import UsageError, check_output, output_console, user_errors
from weavejax.cli.limits import add_limits, read_limits
from weavejax.cli.measuring import open_cluster
from weavejax.cli.policies import add_policy_module, import_policies
from weavejax.models.presets import resolve_config
from weavejax.models.tiny import tiny_config
from weavejax.plan import Plan
from weavejax.plan_table import plan_table
from weavejax.planner import SearchReport, policy_names, search


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Register the command."""
    parser = commands.add_parser("plan", help="find the cheapest plan for a model on a cluster")
    parser.add_argument("model", help="preset, or a directory or file with a config.json")
    parser.add_argument(
        "--cluster", required=True, help="h100-sxm:16,l40s:16, or a YAML or JSON cluster file"
    )
    parser.add_argument("--context", type=int, required=True, metavar="TOKENS")
    parser.add_argument("--tpot-slo-ms", type=float, required=True, metavar="MS")
    parser.add_argument(
        "--policy", default="weave", metavar="NAME", help=f"{', '.join(policy_names())} or your own"
    )
    add_policy_module(parser)
    parser.add_argument("--profile", help="a profile file; the shipped measured one by default")
    add_limits(parser)
    parser.add_argument(
        "--random-weights",
        action="store_true",
        help="for the tiny random model that generate and check --random-weights run",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the plan as JSON")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command: 0, or 130 when interrupted before the plan was proven."""
    check_output(options.output)
    import_policies(options.policy_module)
    with user_errors():
        config = resolve_config(options.model)
        if options.random_weights:
            config = tiny_config(config)
        report = search(
            config,
            open_cluster(options.cluster, options.profile),
            options.context,
            options.tpot_slo_ms / 1e3,
            policy=options.policy,
            limits=read_limits(options),
            profile=options.profile,
            progress=sys.stderr.isatty() and not options.json,
        )
    plan = report.best
    if plan is None:
        raise UsageError("interrupted before any plan was found")
    if options.output:
        with user_errors():
            plan.save(options.output)
    if options.json:
        print(json.dumps(plan.to_dict(), indent=2))
    else:
        console = output_console()
        console.print(plan_table(plan, config))
        console.print(summary(plan, report))
        if options.output:
            console.print(f"written to {options.output}; read it with: weavejax explain", end=" ")
            console.print(options.output)
    return 0 if report.proven else 130


def summary(plan: Plan, report: SearchReport) -> str:
    """The figures of a plan and how sure they are, in four lines."""
    prediction = plan.prediction
    assert prediction is not None
    cost = prediction.usd_per_million_tokens
    slo = plan.workload.tpot_slo_s
    counts = report.counts
    proven = "proven cheapest of the grid" if report.proven else "NOT PROVEN: interrupted"
    return "\n".join(
        (
            f"round-trip time {prediction.round_trip_time_s * 1e3:.2f} ms"
            + (f" (target {slo * 1e3:g} ms)" if slo else "")
            + f", {prediction.tokens_per_s(plan.batch):,.0f} tokens/s"
            + f" on {plan.num_devices} devices",
            f"cost {'unknown' if cost is None else f'${cost:.4f}'} per million output tokens, "
            f"occupancy {prediction.occupancy:.1%}, "
            f"{prediction.internode_bytes_per_token / 2**20:.2f} MiB between nodes per token",
            f"{proven}: {counts.candidates:,} candidates, {counts.simulated:,} simulated, "
            f"{report.seconds:.2f} s (compilation {report.compile_s:.1f} s)",
        )
    )
