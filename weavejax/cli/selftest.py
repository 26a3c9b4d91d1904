"""``weavejax selftest``: does this machine's accelerator compute what it should, and how fast."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import jax
from rich.table import Table

from weavejax.cli.common import check_output, output_console, user_errors
from weavejax.measure.selftest import (
    ARCHITECTURES,
    Finding,
    check_architectures,
    check_host,
    check_profile,
    check_speed,
)
from weavejax.models.loading import load_model


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Register the command."""
    parser = commands.add_parser(
        "selftest", help="check an accelerator against the CPU, and time decode steps on it"
    )
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument(
        "--architecture", nargs="+", choices=ARCHITECTURES, default=ARCHITECTURES, metavar="PRESET"
    )
    parser.add_argument(
        "-o", "--output", default="selftest-profile.json", metavar="FILE", help="the profile"
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command: 0, 1 when something was computed wrongly, 2 where there is no GPU."""
    check_output(options.output)
    console = output_console()
    try:
        device, reference = jax.devices(options.device)[0], jax.devices("cpu")[0]
    except RuntimeError:
        console.print(
            "no GPU here, nothing was checked: JAX sees "
            + ", ".join(sorted({d.device_kind for d in jax.devices()}))
        )
        return 2
    begin = time.perf_counter()
    console.print(f"JAX {jax.__version__}, {device.device_kind}")
    findings = []
    with user_errors():
        for finding in check_architectures(device, reference, options.architecture):
            findings.append(_show(console, finding))
        large = device.platform != "cpu"
        model = load_model("qwen3-0.6b", random_weights=True, scale=None if large else "tiny")
        points = ((1, 1024), (32, 1024), (128, 8192), (512, 1024)) if large else ((2, 32),)
        rows, context = ((1, 32, 128), 1024) if large else ((1, 2), 32)
        findings += [_show(console, found) for found in check_speed(model, device, points)]
        findings += [_show(console, found) for found in check_host(model)]
        output = Path(options.output)
        findings += [_show(console, found) for found in check_profile(model, output, rows, context)]
    wrong = [finding for finding in findings if not finding.good]
    console.print(_summary(findings, wrong, time.perf_counter() - begin))
    return int(bool(wrong))


def _show(console: Any, finding: Finding) -> Finding:
    mark = "ok   " if finding.good else "WRONG"
    console.print(f"{mark} {finding.what}: {finding.figure}")
    return finding


def _summary(findings: list[Finding], wrong: list[Finding], seconds: float) -> Table:
    table = Table(show_header=False)
    table.add_row("checked", str(len(findings)))
    table.add_row("wrong", str(len(wrong)))
    table.add_row("seconds", f"{seconds:.0f}")
    return table
