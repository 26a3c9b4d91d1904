"""``weavejax bench compare|batching|host|smoke``: what is worth knowing as a ratio in one run."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.table import Table

from weavejax.bench.batching import BatchingResult, bench_batching, mixed_requests
from weavejax.bench.compare import ComparedPoint, bench_compare
from weavejax.bench.host import HostPoint, bench_host
from weavejax.bench.llama_contestant import LLAMA_CPP
from weavejax.bench.results import compare_results, read_results, write_results
from weavejax.bench.smoke import Check, bench_smoke
from weavejax.cli.common import (
    UsageError,
    add_cpu_devices,
    check_output,
    output_console,
    user_errors,
)
from weavejax.default_plans import default_plan, model_ref
from weavejax.models.loading import Model, load_model
from weavejax.plan import DeviceGroup, Plan, Template, Workload
from weavejax.progress import show_progress
from weavejax.serve import serve


def add_kinds(kinds: Any) -> None:
    """Register the kinds below ``weavejax bench``."""
    for name, text in (
        ("compare", "plans beside transformers on the same weights, everyone in turns"),
        ("batching", "continuous batching beside static batches of the same size"),
        ("host", "what the host's thread spends per action, over the number of stages"),
        ("smoke", "a minute of the ratios above with wide margins; fails when one is missed"),
    ):
        kind = kinds.add_parser(name, help=text)
        kind.add_argument("model", help="preset, Hugging Face directory, hub id or .gguf file")
        kind.add_argument("--random-weights", action="store_true", help="a tiny random model")
        kind.add_argument("--json", action="store_true", help="print JSON")
        add_cpu_devices(kind)
        if name == "compare":
            kind.add_argument("--plans", nargs="+", default=["colocated"], metavar="POLICY")
            kind.add_argument(
                "--against",
                nargs="+",
                choices=["transformers", LLAMA_CPP],
                default=[],
                help="transformers on the same weights; llama.cpp on the model's GGUF file",
            )
            kind.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32], metavar="N")
            kind.add_argument("--context", type=int, default=128, metavar="TOKENS")
            kind.add_argument("--prompt", type=int, default=512, metavar="TOKENS", help="0: none")
            kind.add_argument(
                "--dtypes",
                nargs="+",
                choices=["float32", "bfloat16"],
                default=["float32"],
                help="of the plans; times are compared with the first plan in the first one",
            )
            kind.add_argument("--rounds", type=int, default=5, metavar="N")
            kind.add_argument("-o", "--output", metavar="FILE", help="keep the results")
            kind.add_argument("--baseline", metavar="FILE", help="results to compare with")
            kind.add_argument(
                "--tolerance",
                type=float,
                default=0.25,
                help="part by which a ratio may be worse than the baseline's",
            )
        elif name == "batching":
            kind.add_argument("--requests", type=int, default=200, metavar="N")
            kind.add_argument("--slots", type=int, default=8, metavar="N")
            kind.add_argument("--input-len", type=int, default=16, metavar="TOKENS")
            kind.add_argument("--output-len", type=int, default=32, metavar="TOKENS", help="mean")
            kind.add_argument("--rounds", type=int, default=1, metavar="N")
        elif name == "host":
            kind.add_argument("--batch", type=int, default=4, metavar="N")
            kind.add_argument("--context", type=int, default=128, metavar="TOKENS")


def run(options: argparse.Namespace) -> int:
    """Run one kind: 0, or 1 when a ratio missed its margin."""
    kinds = {"compare": _compare, "batching": _batching, "host": _host, "smoke": _smoke}
    with user_errors():
        if options.random_weights:
            model = load_model(options.model, random_weights=True, scale="tiny")
        else:
            model = load_model(options.model)
    return kinds[options.kind](options, model)


def _default_plan(model: Model, policy: str, slots: int, context: int) -> Plan:
    return default_plan(model.config, policy, devices=1, device="cpu", slots=slots, context=context)


def _compare(options: argparse.Namespace, model: Model) -> int:
    check_output(options.output)
    baseline = None
    with user_errors():
        if options.baseline:
            baseline = read_results(options.baseline)
        with show_progress() as report:
            points = bench_compare(
                model,
                lambda policy, batch, context: _default_plan(model, policy, batch, context),
                options.plans,
                batches=options.batch,
                context=options.context,
                prompt_tokens=options.prompt,
                dtypes=list(dict.fromkeys(options.dtypes)),
                against=options.against,
                rounds=options.rounds,
                progress=report,
            )
    if options.output:
        write_results(options.output, model.config.name, points)
    if options.json:
        print(json.dumps([point.to_dict() for point in points]))
    else:
        output_console().print(compare_table(points))
    if baseline is None:
        return 0
    worse = compare_results(baseline, points, options.tolerance)
    for line in worse:
        output_console().print(f"worse than {options.baseline}: {line}")
    return int(bool(worse))


def compare_table(points: list[ComparedPoint]) -> Table:
    """One row per piece of work and contestant: median time, and over that of the first plan."""
    table = Table(title="in turns, medians", title_justify="left")
    for name in ("work", "batch", "tokens", "who", "ms", "tokens/s", "time over the first"):
        table.add_column(name, justify="left" if name in ("work", "who") else "right")
    for point in points:
        produced = point.batch if point.work == "decode" else point.tokens
        for name, time_s in point.times_s.items():
            table.add_row(
                point.work,
                str(point.batch),
                str(point.tokens),
                name,
                f"{time_s * 1e3:.2f}",
                f"{produced / time_s:.1f}",
                f"{point.over_first(name):.2f}",
            )
        if point.ratio is not None:
            best = f"{next(iter(point.times_s))} over transformers, each at its best"
            speed = f"{point.ratio:.2f} times the speed"
            table.add_row("", "", "", best, "", "", speed, end_section=True)
    return table


def _batching(options: argparse.Namespace, model: Model) -> int:
    with user_errors():
        requests = mixed_requests(
            options.requests,
            options.input_len,
            options.output_len,
            vocab_size=model.config.vocab_size,
        )
        context = options.input_len + 8 * options.output_len
        engine = serve(model, "colocated", slots=options.slots, context=context)
    with engine, show_progress() as report:
        result = bench_batching(engine, requests, rounds=options.rounds, progress=report)
    if options.json:
        print(json.dumps(vars(result) | {"ratio": result.ratio}))
    else:
        output_console().print(batching_table(result))
    return 0


def batching_table(result: BatchingResult) -> Table:
    """Both ways and their ratio."""
    title = f"{result.requests} requests of mixed length through {result.slots} slots"
    table = Table(title=title, title_justify="left")
    for name in ("batching", "seconds", "output tokens/s"):
        table.add_column(name, justify="left" if name == "batching" else "right")
    for name, time_s in (("continuous", result.continuous_s), ("static", result.static_s)):
        table.add_row(name, f"{time_s:.2f}", f"{result.output_tokens / time_s:.1f}")
    table.add_row("continuous over static", "", f"{result.ratio:.2f} times the throughput")
    return table


def _host(options: argparse.Namespace, model: Model) -> int:
    with user_errors():
        plans = host_plans(model, options.batch, options.context)
        with show_progress() as report:
            points = bench_host(model, plans, progress=report)
    if options.json:
        print(json.dumps([vars(point) | {"share": point.share} for point in points]))
    else:
        output_console().print(host_table(points))
    return 0


def host_plans(model: Model, batch: int, context: int) -> list[tuple[str, Plan]]:
    """Plans of two groups with fewer and fewer stages, and CAD, which moves most."""
    group = DeviceGroup(device="cpu", resident_batch=batch)

    def plan(template: Template) -> Plan:
        return Plan(
            model=model_ref(model.config),
            workload=Workload(context=context),
            template=template,
            groups=(group, group),
        )

    found = [("cad", plan(Template(cuts=(1,), offset=1)))]
    for layers in (1, 2, 3, 5, 10):
        if layers <= model.config.num_layers:
            name = f"afd over {layers} layer{'s' * (layers > 1)}"
            found.append((name, plan(Template(layers=layers, cuts=(4 * layers - 1,)))))
    return found


def host_table(points: list[HostPoint]) -> Table:
    """One row per plan."""
    table = Table(title="CPU time of the thread that submits actions", title_justify="left")
    columns = ("plan", "stages", "moves", "us per Run", "us per move", "us per iteration")
    for name in (*columns, "us per stage", "part of an iteration"):
        table.add_column(name, justify="left" if name == "plan" else "right")
    for point in points:
        table.add_row(
            point.plan,
            str(point.stages),
            str(point.moves),
            f"{point.run_s * 1e6:.1f}",
            f"{point.move_s * 1e6:.1f}",
            f"{point.host_s * 1e6:.0f}",
            f"{point.host_s * 1e6 / point.stages:.1f}",
            f"{point.share:.0%}",
        )
    return table


def _smoke(options: argparse.Namespace, model: Model) -> int:
    if model.config.moe is not None:
        raise UsageError("bench smoke needs a dense model: experts have no single GEMM")
    with user_errors(), show_progress() as report:
        checks = bench_smoke(
            model, lambda *arguments: _default_plan(model, *arguments), progress=report
        )
    if options.json:
        print(json.dumps([vars(check) | {"holds": check.holds} for check in checks]))
    else:
        output_console().print(smoke_table(checks))
    return int(not all(check.holds for check in checks))


def smoke_table(checks: list[Check]) -> Table:
    """One row per ratio."""
    table = Table(title="ratios with wide margins", title_justify="left")
    for name in ("ratio", "measured", "margin", "holds"):
        table.add_column(name, justify="left" if name == "ratio" else "right")
    for check in checks:
        sign = "at most" if check.at_most else "at least"
        margin = f"{sign} {check.margin:.2f}"
        table.add_row(check.name, f"{check.value:.2f}", margin, "yes" if check.holds else "NO")
    return table
