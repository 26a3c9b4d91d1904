"""``weavejax cluster-check``: tokens, faults, growth and overlap of device groups as processes."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections import Counter
from typing import Any

import jax
from rich.table import Table

from weavejax.bench.cluster_tokens import TokensRow, compare_tokens, template_plans
from weavejax.bench.faults import KINDS, Campaign, FaultRound, python_module, run_faults
from weavejax.bench.growth import Usage, measure_growth
from weavejax.bench.overlap import OverlapPoint, layers_only_model, measure_overlap
from weavejax.bench.two_hosts import measure_two_hosts, why_not
from weavejax.cli.backend import add_backend, launcher_maker, worker_options
from weavejax.cli.common import output_console, user_errors
from weavejax.default_plans import model_ref
from weavejax.models.loading import Model, load_model
from weavejax.plan import DeviceGroup, Plan, Template, Workload
from weavejax.progress import show_progress
from weavejax.workers.executor import ClusterExecutor

LAYERS_ONLY = "layers-only"
"""Name of :func:`layers_only_model`."""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Register the command."""
    parser = commands.add_parser(
        "cluster-check", help="try out device groups as processes: tokens, faults, growth, overlap"
    )
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    tokens = kinds.add_parser("tokens", help="same tokens as in one process, plan by plan")
    tokens.add_argument("--only", nargs="+", metavar="PLAN", help="plans of the list to try")
    faults = kinds.add_parser("faults", help="kill, stop and cut off workers at random passes")
    faults.add_argument("--rounds", type=int, default=50, metavar="N")
    faults.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    faults.add_argument("--seed", type=int, default=0)
    growth = kinds.add_parser("growth", help="memory, threads and descriptors over iterations")
    growth.add_argument("--iterations", type=int, default=10_000, metavar="N")
    overlap = kinds.add_parser("overlap", help="several microbatches against one, and simulated")
    hosts = kinds.add_parser("two-hosts", help="overlap over two network namespaces (Linux, root)")
    hosts.add_argument("--delay-ms", type=float, default=2.0, help="of the link, each way")
    for kind in (overlap, hosts):
        kind.add_argument("--microbatches", type=int, nargs="+", default=(1, 2), metavar="N")
        rows, context = (128, 64) if kind is overlap else (16, 256)
        kind.add_argument("--rows", type=int, default=rows, help="slots (default: %(default)d)")
        kind.add_argument("--context", type=int, default=context, metavar="TOKENS")
        kind.add_argument("--repeats", type=int, default=7, metavar="N")
        # Every second layer on the other group: as even as two groups can be.
        layers, cuts = (2, (4,)) if kind is overlap else (1, (3,))
        kind.add_argument("--layers", type=int, default=layers, help="of the template's sub-block")
        kind.add_argument("--cuts", type=int, nargs="+", default=cuts, metavar="OPERATOR")
        kind.add_argument("--offset", type=int, default=0, metavar="OPERATORS")
    for kind in (tokens, faults, growth, overlap, hosts):
        default = {overlap: LAYERS_ONLY, hosts: "smollm2-135m-instruct"}.get(kind, "llama-3.1-8b")
        kind.add_argument("--model", default=default, help="(default: %(default)s)")
        kind.add_argument("--json", action="store_true", help="print JSON")
        if kind is not hosts:
            add_backend(kind, default="processes", choices=("processes", "ray"))
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command: 0, or 1 when something was not as it must be."""
    kinds = {
        "tokens": _tokens,
        "faults": _faults,
        "growth": _growth,
        "overlap": _overlap,
        "two-hosts": _two_hosts,
    }
    return kinds[options.kind](options)


def _tiny(options: argparse.Namespace) -> Model:
    return load_model(options.model, random_weights=True, scale="tiny")


def _tokens(options: argparse.Namespace) -> int:
    jax.config.update("jax_platforms", "cpu")
    with user_errors():
        model = _tiny(options)
        plans = template_plans(model.config)
        unknown = sorted(set(options.only or ()) - set(plans))
        if unknown:
            raise ValueError(f"plans are {', '.join(plans)}; got {', '.join(unknown)}")
        plans = {name: plan for name, plan in plans.items() if name in (options.only or plans)}
        rows: list[TokensRow] = []
        with show_progress() as report:
            for row in compare_tokens(
                model, plans, launcher_maker(options), options=worker_options(options)
            ):
                rows.append(row)
                report("plans", len(rows), len(plans))
    _print(options, rows, "tokens of workers against one process")
    return int(not all(row.same for row in rows))


def _faults(options: argparse.Namespace) -> int:
    with user_errors():
        model = _tiny(options)
        campaign = Campaign(
            model=model,
            plan=template_plans(model.config)["afd, 1 to 2"],
            launcher=launcher_maker(options),
            options=worker_options(options),
            prompts=[[3 + (7 * i + j) % 200 for j in range(2 + 5 * i)] for i in range(6)],
            coordinator_command=python_module(
                "weavejax.bench.faults_coordinator", options.model, options.backend
            ),
        )
    with user_errors(), show_progress() as report:
        rounds = run_faults(
            campaign, options.rounds, kinds=options.kinds, seed=options.seed, progress=report
        )
    _print(options, rounds, "faults")
    if not options.json:
        output_console().print(fault_summary(rounds))
    return int(any(one.wrong or one.left for one in rounds))


def fault_summary(rounds: list[FaultRound]) -> str:
    """Counts over all rounds."""
    kinds = Counter(one.kind for one in rounds)
    parts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    totals = {name: sum(getattr(one, name) for one in rounds) for name in ("finished", "failed")}
    return (
        f"{len(rounds)} faults ({parts}): {totals['finished']} requests finished, "
        f"{totals['failed']} ended with a named error, {sum(one.wrong for one in rounds)} lost, "
        f"doubled or wrong, {sum(one.left for one in rounds)} processes left; at most "
        f"{max((one.seconds for one in rounds), default=0.0):.1f} s"
    )


def _growth(options: argparse.Namespace) -> int:
    with user_errors():
        model = _tiny(options)
        plan = template_plans(model.config, context=128)["afd, 2 microbatches"]
        launcher = launcher_maker(options)()
        executor = ClusterExecutor(
            model, plan, launcher, chunks=(8,), options=worker_options(options)
        )
    try:
        with show_progress() as report:
            usages = measure_growth(executor, options.iterations, progress=report)
    finally:
        executor.close()
    _print(options, usages, "what processes hold")
    return int(grows(usages))


def grows(usages: list[Usage]) -> bool:
    """Whether a process holds more at the end than after the first tenth."""
    by_process: dict[str, list[Usage]] = {}
    for usage in usages:
        by_process.setdefault(usage.process, []).append(usage)
    return any(
        last.threads > first.threads
        or last.descriptors > first.descriptors
        or last.memory_bytes > first.memory_bytes + 16 * 2**20
        for first, *_, last in by_process.values()
    )


def _overlap(options: argparse.Namespace) -> int:
    with user_errors():
        layers_only = options.model == LAYERS_ONLY
        model = layers_only_model() if layers_only else load_model(options.model)
        group = DeviceGroup(device="cpu", resident_batch=options.rows)
        template = Template(layers=options.layers, cuts=tuple(options.cuts), offset=options.offset)

        def make_plan(microbatches: int) -> Plan:
            return Plan(
                model=model_ref(model.config),
                workload=Workload(context=options.context),
                template=template,
                groups=(group, group),
                microbatches=microbatches,
            )

        with show_progress() as report:
            points = measure_overlap(
                model,
                make_plan,
                launcher_maker(options),
                options.microbatches,
                repeats=options.repeats,
                options=worker_options(options),
                progress=report,
            )
    if options.json:
        print(json.dumps([dataclasses.asdict(point) for point in points]))
    else:
        output_console().print(overlap_table(points, "overlap of two pinned groups"))
    return 0


def _two_hosts(options: argparse.Namespace) -> int:
    reason = why_not()
    if reason is not None:
        print(f"skipped: {reason}")
        return 0
    names = ("microbatches", "rows", "context", "repeats", "layers", "cuts", "offset")
    arguments = {name: getattr(options, name) for name in names}
    with user_errors():
        found = measure_two_hosts(options.model, options.delay_ms / 1e3, arguments=arguments)
    if options.json:
        print(json.dumps(found))
    else:
        points = [OverlapPoint(**point) for point in found["points"]]
        output_console().print(overlap_table(points, "two groups on two hosts"))
        print("tokens:", "those of one process" if found["same"] else "NOT those of one process")
    return int(not found["same"])


def overlap_table(points: list[OverlapPoint], title: str) -> Table:
    """One row per number of microbatches."""
    table = Table(title=title, title_justify="left")
    names = ("microbatches", "round trip ms", "simulated ms", "measured / simulated tokens/s")
    for name in (*names, "tokens/s", "against first", "group ms", "move ms", "moves"):
        table.add_column(name, justify="right")
    for point in points:
        table.add_row(
            str(point.microbatches),
            f"{1e3 * point.round_trip_s:.2f}",
            f"{1e3 * point.simulated_s:.2f}",
            f"{point.simulated_s / point.round_trip_s:.2f}",
            f"{point.tokens_per_s:.1f}",
            f"{point.tokens_per_s / points[0].tokens_per_s:.2f}x",
            " + ".join(f"{1e3 * seconds:.2f}" for seconds in point.compute_s),
            f"{1e3 * point.move_s:.3f}",
            f"{point.boundaries} x {point.microbatches}",
        )
    return table


def _print(options: argparse.Namespace, rows: list[Any], title: str) -> None:
    """Rows of one dataclass as a table, or as JSON."""
    if options.json:
        print(json.dumps([dataclasses.asdict(row) for row in rows]))
        return
    table = Table(title=title, title_justify="left")
    names = [field.name for field in dataclasses.fields(rows[0])] if rows else []
    for name in names:
        table.add_column(name.replace("_", " "))
    for row in rows:
        table.add_row(*(_cell(name, getattr(row, name)) for name in names))
    output_console().print(table)


def _cell(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return f"{value / 1e6:.1f} MB"
    if isinstance(value, float):
        return f"{value:.2g}" if name == "logprob_difference" else f"{value:.2f}"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
