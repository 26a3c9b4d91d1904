"""``weavejax bench``: offline throughput, and the decode step beside its own GEMMs."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from typing import Any

import jax
from rich.table import Table

from weavejax.bench import bench_decode, bench_throughput, load_requests, random_requests
from weavejax.bench.decode import DecodePoint
from weavejax.bench.throughput import ThroughputResult
from weavejax.cli import bench_ratios
from weavejax.cli.common import (
    add_cpu_devices,
    add_dtype,
    check_output,
    output_console,
    set_cpu_devices,
    user_errors,
)
from weavejax.default_plans import default_plan
from weavejax.models.loading import load_model
from weavejax.progress import show_progress
from weavejax.serve import serve


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Register the command and its two kinds."""
    parser = commands.add_parser("bench", help="measure throughput, steps, ratios, host cost")
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    for name, text in (
        ("throughput", "offline throughput of many requests"),
        ("decode", "steady decode iterations beside the time of their GEMMs"),
    ):
        kind = kinds.add_parser(name, help=text)
        kind.add_argument("model", help="preset, Hugging Face directory, hub id or .gguf file")
        kind.add_argument("--plan", default="colocated", metavar="colocated|afd|cad|FILE")
        kind.add_argument("--random-weights", action="store_true", help="a tiny random model")
        kind.add_argument("--json", action="store_true", help="print JSON")
        add_dtype(kind)
        add_cpu_devices(kind)
        if name == "throughput":
            kind.add_argument("--requests", type=int, default=32, metavar="N")
            kind.add_argument("--input-len", type=int, default=64, metavar="TOKENS")
            kind.add_argument("--output-len", type=int, default=64, metavar="TOKENS")
            kind.add_argument("--spread", type=float, default=0.0, help="lengths vary by this part")
            kind.add_argument("--dataset", metavar="FILE", help="JSON lines with prompts")
            kind.add_argument("--slots", type=int, default=8)
            kind.add_argument("--context", type=int, metavar="TOKENS")
            kind.add_argument("--trace", metavar="FILE", help="write the spans for Perfetto")
        else:
            kind.add_argument("--batch", type=int, nargs="+", default=(1, 8, 32), metavar="N")
            kind.add_argument("--context", type=int, nargs="+", default=(128,), metavar="TOKENS")
            kind.add_argument("--repeats", type=int, default=5, metavar="N")
    bench_ratios.add_kinds(kinds)
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command: 0, or 1 when a request failed."""
    set_cpu_devices(options.cpu_devices)
    if options.kind == "decode":
        return _decode(options)
    if options.kind == "throughput":
        return _throughput(options)
    return bench_ratios.run(options)


def _throughput(options: argparse.Namespace) -> int:
    check_output(options.trace)
    with user_errors():
        model = _model(options)
        if options.dataset:
            requests = load_requests(options.dataset, max_tokens=options.output_len)
        else:
            requests = random_requests(
                options.requests,
                options.input_len,
                options.output_len,
                vocab_size=model.config.vocab_size,
                spread=options.spread,
            )
        context = options.context or int(2 * (options.input_len + options.output_len))
        engine = serve(
            model, options.plan, dtype=options.dtype, slots=options.slots, context=context
        )
    with engine, show_progress() as report, ExitStack() as tracing:
        trace = tracing.enter_context(engine.trace()) if options.trace else None
        result = bench_throughput(engine, requests, progress=report)
    if trace is not None:
        trace.save(options.trace)
    if options.json:
        print(json.dumps(result.to_dict()))
    else:
        output_console().print(throughput_table(result))
    return int(result.failed > 0)


def _decode(options: argparse.Namespace) -> int:
    with user_errors():
        model = _model(options)
        if model.config.moe is not None:
            raise ValueError("bench decode needs a dense model: experts have no single GEMM")
        kind = jax.devices()[0].platform
        count = 1 if kind == "cpu" else jax.device_count()
        with show_progress() as report:
            points = bench_decode(
                model,
                lambda batch, context: default_plan(
                    model.config,
                    options.plan,
                    slots=batch,
                    context=context,
                    device=kind,
                    devices=count,
                ),
                options.batch,
                options.context,
                repeats=options.repeats,
                dtype=options.dtype,
                progress=report,
            )
    if options.json:
        print(json.dumps([vars(point) | {"ratio": point.ratio} for point in points]))
    else:
        output_console().print(decode_table(points))
    return 0


def _model(options: argparse.Namespace) -> Any:
    if options.random_weights:
        return load_model(options.model, random_weights=True, scale="tiny")
    return load_model(options.model)


def throughput_table(result: ThroughputResult) -> Table:
    """The figures as people know them from other benchmarks."""
    table = Table(title="offline throughput", title_justify="left", show_header=False)
    for _ in range(2):
        table.add_column(justify="right")
    table.add_row("requests", f"{result.requests} ({result.failed} failed)")
    table.add_row("duration", f"{result.duration_s:.2f} s")
    table.add_row("requests/s", f"{result.requests_per_s:.2f}")
    table.add_row("output tokens/s", f"{result.output_tokens_per_s:.1f}")
    table.add_row("total tokens/s", f"{result.total_tokens_per_s:.1f}")
    for name, value in (
        ("time to first token", result.time_to_first_token),
        ("time per output token", result.time_per_output_token),
        ("inter-token latency", result.inter_token_latency),
    ):
        parts = (value.mean_s, value.p50_s, value.p95_s, value.p99_s)
        figures = " / ".join(f"{1e3 * part:.1f}" for part in parts)
        table.add_row(f"{name}, ms mean / p50 / p95 / p99", figures)
    if result.usd_per_million_output_tokens is not None:
        table.add_row("$ per million output tokens", f"{result.usd_per_million_output_tokens:.4f}")
    return table


def decode_table(points: list[DecodePoint]) -> Table:
    """One row per batch and context; medians."""
    table = Table(title="decode step beside its own GEMMs", title_justify="left")
    for name in ("batch", "context", "step ms", "GEMMs ms", "ratio", "tokens/s"):
        table.add_column(name, justify="right")
    for point in points:
        table.add_row(
            str(point.batch),
            str(point.context),
            f"{point.step_s * 1e3:.2f}",
            f"{point.gemm_s * 1e3:.2f}",
            f"{point.ratio:.2f}",
            f"{point.tokens_per_s:.1f}",
        )
    return table
