"""``weavejax explain``: a plan as a person reads it, with the verdict and what would turn it."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from weavejax.cli.common import output_console, user_errors
from weavejax.cli.limits import add_limits, read_limits
from weavejax.plan import Plan
from weavejax.planner.comparison import compare, plan_limits
from weavejax.planner.explain import explain
from weavejax.planner.predict import evaluate, plan_profile
from weavejax.planner.sensitivity import flips
from weavejax.profiles import load_profile


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Register the command."""
    parser = commands.add_parser("explain", help="show a plan, its rivals and the verdict")
    parser.add_argument("plan", help="a plan file")
    parser.add_argument("--profile", help="a profile file; the plan's own by default")
    parser.add_argument(
        "--brief", action="store_true", help="the plan alone: no rivals, verdict or what-if"
    )
    parser.add_argument(
        "--no-what-if", action="store_true", help="leave out what would turn the verdict"
    )
    add_limits(parser, of_plan=True)
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    console = output_console()
    with user_errors():
        plan = Plan.load(options.plan)
        profile = load_profile(options.profile) if options.profile else plan_profile(plan, None)
        prediction = evaluate(plan, profile)
        if plan.prediction not in (None, prediction):
            Console(stderr=True).print(
                "the prediction in the file is not this plan's with this profile: "
                "shown is a new one"
            )
        plan = plan.replace(prediction=prediction)
        if options.brief or plan.workload.tpot_slo_s is None:
            console.print(explain(plan))
            return 0
        limits = read_limits(options, plan_limits(plan))
        with Console(stderr=True).status("searching the rivals"):
            comparison = compare(plan, profile, limits=limits)
        turns = ()
        if not options.no_what_if:
            with Console(stderr=True).status("searching what would turn the verdict"):
                turns = flips(plan, profile, limits=limits)
    console.print(explain(plan, comparison, turns))
    return 0
