"""``weavejax serve-cluster``: start a plan's workers and answer prompts until input ends."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from weavejax.cli.backend import add_backend, backend_settings
from weavejax.cli.common import user_errors
from weavejax.cli.generate import read_prompts
from weavejax.engine import Engine
from weavejax.models.loading import load_model
from weavejax.plan_table import plan_table
from weavejax.request import SamplingParams
from weavejax.serve import serve
from weavejax.workers.executor import ClusterExecutor


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Register the command."""
    parser = commands.add_parser(
        "serve-cluster",
        help="start device groups as processes and answer prompts from standard input",
        description="Starts one worker process for every replica of a plan, prints where each is, "
        "and answers every line of standard input as a prompt, as it comes.",
    )
    parser.add_argument("model", help="preset, Hugging Face directory, hub id or .gguf file")
    parser.add_argument("--plan", default="afd", metavar="colocated|afd|cad|FILE")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N")
    parser.add_argument("--chat", action="store_true", help="use the model's chat template")
    parser.add_argument("--slots", type=int, default=8, help="requests served at once")
    parser.add_argument("--context", type=int, metavar="N", help="tokens a slot holds")
    parser.add_argument(
        "--random-weights",
        action="store_true",
        help="a tiny random model of this architecture; prompts are token ids such as 1,2,3",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per prompt")
    add_backend(parser, default="ray", choices=("processes", "ray"))
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command: 0, or 1 when a request failed."""
    with user_errors():
        params = SamplingParams(max_tokens=options.max_tokens)
        model = (
            load_model(options.model, random_weights=True, scale="tiny")
            if options.random_weights
            else load_model(options.model)
        )
        engine = serve(
            model,
            options.plan,
            slots=options.slots,
            context=options.context,
            **backend_settings(options),
        )
    with engine:
        console = Console(stderr=True)
        console.print(plan_table(engine.plan, model.config))
        console.print(workers_table(engine))
        print("ready: one prompt a line; end with Ctrl-D", file=sys.stderr, flush=True)
        failed = 0
        for line in sys.stdin:
            if line.strip():
                with user_errors():
                    text = model.tokenizer is not None
                    prompts = read_prompts([line.strip()], chat=options.chat, text=text)
                failed += _answer(engine, prompts, params, as_json=options.json)
        return int(failed > 0)


def workers_table(engine: Engine) -> Table:
    """Where every worker runs."""
    executor = engine.executor
    assert isinstance(executor, ClusterExecutor)
    table = Table(title=f"workers; rows travel by {executor.moves}", title_justify="left")
    for name in ("worker", "device", "host", "address", "cores", "process"):
        table.add_column(name)
    for name, place, (host, port), process in executor.workers():
        cores = "any" if place.cores is None else ", ".join(map(str, place.cores))
        device = engine.plan.groups[name.group].device
        table.add_row(name.describe(), device, place.host, f"{host}:{port}", cores, str(process))
    return table


def _answer(engine: Engine, prompts: list[Any], params: SamplingParams, *, as_json: bool) -> int:
    failed = 0
    for chunk in engine.stream(prompts, params):
        if not as_json:
            ids = "".join(f"{token} " for token in chunk.token_ids)
            print(chunk.text if engine.model.tokenizer else ids, end="", flush=True)
        if chunk.output is not None:
            failed += chunk.output.error is not None
            if as_json:
                print(json.dumps(dataclasses.asdict(chunk.output)), flush=True)
            elif chunk.output.error is not None:
                print(chunk.output.error, file=sys.stderr, flush=True)
    if not as_json:
        print(flush=True)
    return failed
