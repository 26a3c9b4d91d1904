"""``weavejax simulate``: a plan's schedule on the simulator, as figures and as a trace."""

from __future__ import annotations

import argparse
from typing import Any

from weavejax.cli.common import check_output, output_console, user_errors
from weavejax.plan import Plan
from weavejax.plan_table import describe_group
from weavejax.planner import simulate
from weavejax.planner.predict import plan_profile
from weavejax.profiles import load_profile
from weavejax.span import write_chrome_trace


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Register the command."""
    parser = commands.add_parser("simulate", help="simulate a plan and write its timeline")
    parser.add_argument("plan", help="a plan file")
    parser.add_argument("--profile", help="a profile file; the plan's own by default")
    parser.add_argument("--iterations", type=int, default=4, metavar="N", help="in the trace")
    parser.add_argument("--trace", metavar="FILE", help="write a Perfetto / Chrome trace")
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    check_output(options.trace)
    with user_errors():
        plan = Plan.load(options.plan)
        profile = load_profile(options.profile) if options.profile else plan_profile(plan, None)
        simulation = simulate(plan, profile, iterations=options.iterations)
        names = {i: f"group {i}: {describe_group(plan, i)}" for i in range(len(plan.groups))}
        if options.trace:
            write_chrome_trace(options.trace, simulation.spans, group_names=names)
    console = output_console()
    console.print(f"round-trip time {simulation.round_trip_time_s * 1e3:.3f} ms")
    for index, busy_s in enumerate(simulation.busy_s):
        share = busy_s / simulation.round_trip_time_s
        console.print(f"{names[index]}: computing {share:.1%} of the time")
    if options.trace:
        count = len(simulation.spans)
        console.print(f"{count} spans in {options.trace}: open it at ui.perfetto.dev")
    return 0
