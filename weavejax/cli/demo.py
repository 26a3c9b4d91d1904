"""``weavejax demo``: a real model through three plans, side by side."""

from __future__ import annotations

import argparse
import time
from typing import Any

from rich.table import Table

from weavejax.cli.common import output_console, set_cpu_devices, user_errors
from weavejax.default_plans import TEMPLATES
from weavejax.models.loading import load_model
from weavejax.plan_table import plan_table
from weavejax.request import Output, SamplingParams
from weavejax.serve import serve

QUESTIONS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Name three primary colours.",
    "Why is the sky blue? Answer in one sentence.",
)


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Register the command."""
    parser = commands.add_parser("demo", help="chat with a small real model through three plans")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--max-tokens", type=int, default=40, metavar="N")
    parser.add_argument("--cpu-devices", type=int, default=2, metavar="N", help="default: 2")
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command: 0 when every plan gave the same tokens, else 1."""
    set_cpu_devices(options.cpu_devices)
    console = output_console()
    with user_errors():
        params = SamplingParams(max_tokens=options.max_tokens)
        model = load_model(options.model)
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    results = Table(title="Greedy decoding through each plan", title_justify="left")
    for name in ("plan", "same tokens", "tokens", "seconds", "tokens/s", "start-up s"):
        results.add_column(name, justify="right" if name.endswith("s") else "left")
    reference: list[Output] | None = None
    same = True
    for policy in TEMPLATES:
        begin = time.perf_counter()
        with user_errors():
            engine = serve(model, policy, slots=len(chats), context=256, prefill_chunks=(64,))
        with engine:
            started = time.perf_counter()
            outputs = engine.generate(chats, params)
            seconds = time.perf_counter() - started
            if reference is None:
                reference = outputs
                for question, output in zip(QUESTIONS, outputs, strict=True):
                    console.print(f"[bold]> {question}[/bold]\n{output.text.strip()}\n")
            console.print(plan_table(engine.plan, model.config))
        tokens = sum(len(output.token_ids) for output in outputs)
        equal = [o.token_ids for o in outputs] == [o.token_ids for o in reference]
        same = same and equal
        results.add_row(
            policy,
            "yes" if equal else "NO",
            str(tokens),
            f"{seconds:.2f}",
            f"{tokens / seconds:.1f}",
            f"{started - begin:.1f}",
        )
    console.print(results)
    return 0 if same else 1
