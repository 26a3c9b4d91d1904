"""``weavejax generate``: text from a model through a plan."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from weavejax.cli.backend import add_backend, backend_settings
from weavejax.cli.common import add_cpu_devices, add_dtype, set_cpu_devices, user_errors
from weavejax.compilation_cache import keep_compiled_programs
from weavejax.engine import Engine
from weavejax.models.loading import load_model
from weavejax.plan_table import plan_table
from weavejax.progress import show_progress
from weavejax.request import Output, Prompt, SamplingParams
from weavejax.serve import serve


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Register the command."""
    parser = commands.add_parser("generate", help="generate text for prompts")
    parser.add_argument("model", help="preset, Hugging Face directory, hub id or .gguf file")
    parser.add_argument("prompts", nargs="+", metavar="PROMPT")
    parser.add_argument(
        "--plan",
        default="colocated",
        metavar="colocated|afd|cad|FILE",
        help="a policy or a plan file (default: colocated)",
    )
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 (default) is greedy")
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT")
    parser.add_argument(
        "--chat", action="store_true", help="send prompts through the model's chat template"
    )
    parser.add_argument("--slots", type=int, default=8, help="requests served at once")
    parser.add_argument("--context", type=int, metavar="N", help="tokens a slot holds")
    parser.add_argument(
        "--oversubscribe",
        action="store_true",
        default=None,
        help="let the groups of a plan file share devices",
    )
    parser.add_argument(
        "--random-weights",
        action="store_true",
        help="a tiny random model of this architecture; prompts are token ids such as 1,2,3",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per prompt")
    add_dtype(parser)
    add_cpu_devices(parser)
    add_backend(parser, default="in-process", choices=("in-process", "processes", "ray"))
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command: 0, or 1 when a request failed."""
    set_cpu_devices(options.cpu_devices)
    with user_errors():
        params = SamplingParams(
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            seed=options.seed,
            stop=tuple(options.stop),
        )
        if options.random_weights:
            model = load_model(options.model, random_weights=True, scale="tiny")
        else:
            model = load_model(options.model)
        prompts = read_prompts(options.prompts, chat=options.chat, text=model.tokenizer is not None)
        engine = serve(
            model,
            options.plan,
            oversubscribe=options.oversubscribe,
            dtype=options.dtype,
            slots=options.slots,
            context=options.context,
            **backend_settings(options),
        )
    with engine:
        if options.json:
            return _print_json(engine, prompts, params)
        Console(stderr=True).print(plan_table(engine.plan, model.config))
        print(f"compiled programs are kept in {keep_compiled_programs()}", file=sys.stderr)
        if engine.executed_plan != engine.plan:
            print(
                "groups share devices: replicas and ranks without one are folded", file=sys.stderr
            )
        return _print_text(engine, prompts, params)


def read_prompts(words: Sequence[str], *, chat: bool, text: bool) -> list[Prompt]:
    """Prompts of the command line: text, one-message chats, or ``1,2,3`` for a model without text.

    Raises:
        ValueError: words that are no token ids for a model without a tokenizer.
    """
    if text:
        return [[{"role": "user", "content": word}] for word in words] if chat else list(words)
    try:
        return [[int(part) for part in word.split(",") if part.strip()] for word in words]
    except ValueError:
        raise ValueError(
            "this model has no tokenizer, so that prompts are token ids such as 1,2,3; got "
            + ", ".join(map(repr, words))
        ) from None


def _print_json(engine: Engine, prompts: list[Prompt], params: SamplingParams) -> int:
    outputs = engine.generate(prompts, params)
    for output in outputs:
        print(json.dumps(dataclasses.asdict(output)))
    return int(any(output.error for output in outputs))


def _print_text(engine: Engine, prompts: list[Prompt], params: SamplingParams) -> int:
    """Stream a single prompt as it comes; print several in order as they finish."""
    start = time.perf_counter()
    outputs: list[Output] = []
    if len(prompts) == 1:
        for chunk in engine.stream(prompts, params):
            shown = (
                chunk.text if engine.model.tokenizer else "".join(f"{t} " for t in chunk.token_ids)
            )
            print(shown, end="", flush=True)
            if chunk.output is not None:
                outputs.append(chunk.output)
        print()
    else:
        with show_progress() as report:
            ended = itertools.count(1)
            outputs = engine.generate(
                prompts,
                params,
                on_finish=lambda output: report("generating", next(ended), len(prompts)),
            )
        for prompt, output in zip(prompts, outputs, strict=True):
            chat = not isinstance(prompt, str) and len(prompt) and isinstance(prompt[0], dict)
            shown = prompt[0]["content"] if chat else prompt  # type: ignore[index]
            print(f"> {shown}\n{output.text or list(output.token_ids)}\n")
    seconds = time.perf_counter() - start
    for output in outputs:
        if output.error:
            print(f"prompt {output.index}: {output.error}", file=sys.stderr)
    tokens = sum(len(output.token_ids) for output in outputs)
    print(f"{tokens} tokens in {seconds:.2f} s ({tokens / seconds:.1f} tokens/s)", file=sys.stderr)
    return int(any(output.error for output in outputs))
