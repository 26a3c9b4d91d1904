"""``weavejax check``: does a plan compute what the colocated plan does, and if not, where."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from weavejax.cli.common import UsageError, output_console, user_errors
from weavejax.cli.measuring import add_machine, add_plan, open_model, open_plan, set_machine
from weavejax.measure.checking import Check, Comparison, check_plan
from weavejax.measure.reference import transformers_logits
from weavejax.models.loading import Model
from weavejax.progress import show_progress

SHOWN = 5
"""Disagreements that are listed."""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Register the command."""
    parser = commands.add_parser(
        "check", help="compare a plan's logits with the colocated plan and with transformers"
    )
    parser.add_argument("model", help="preset, Hugging Face directory, hub id or .gguf file")
    parser.add_argument("--plan", required=True, metavar="colocated|afd|cad|FILE")
    parser.add_argument("--text", help="what to run along; random tokens by default")
    parser.add_argument("--prompt-len", type=int, default=16, metavar="TOKENS", help="prefilled")
    parser.add_argument("--decode-len", type=int, default=16, metavar="TOKENS", help="one by one")
    parser.add_argument(
        "--tolerance", type=float, default=1e-3, metavar="PART", help="of the largest logit"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random tokens")
    add_plan(parser)
    add_machine(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command: 0, or 1 when the plan computes something else."""
    set_machine(options)
    if min(options.prompt_len, options.decode_len) < 1:
        raise UsageError("--prompt-len and --decode-len must be at least 1")
    with user_errors():
        model = open_model(options)
        plan = open_plan(options, model)
        length = options.prompt_len + options.decode_len
        if length > plan.workload.context:
            raise ValueError(
                f"prompt and decoded tokens must fit the context of {plan.workload.context}, "
                f"got {length}"
            )
        tokens = _tokens(options, model, plan.batch, length)
        theirs, note = transformers_logits(model, tokens)
        with show_progress() as report:
            found = check_plan(
                model,
                plan,
                tokens,
                prompt=options.prompt_len,
                tolerance=options.tolerance,
                theirs=theirs,
                progress=report,
            )
    console = output_console()
    for line in report_lines(found):
        console.print(line)
    if theirs is None:
        console.print(note)
    return 0 if found.good else 1


def _tokens(options: argparse.Namespace, model: Model, slots: int, length: int) -> np.ndarray:
    """``[slots, length]``: random, or the text turned by one token from slot to slot."""
    if options.text is None:
        random = np.random.default_rng(options.seed)
        return random.integers(0, model.config.vocab_size, (slots, length), dtype=np.int32)
    if model.tokenizer is None:
        raise ValueError("--text needs a model with a tokenizer")
    ids = model.tokenizer.encode(options.text)
    if not ids:
        raise ValueError("--text must hold at least one token")
    return np.array(
        [[ids[(slot + at) % len(ids)] for at in range(length)] for slot in range(slots)], np.int32
    )


def report_lines(found: Check) -> list[str]:
    """What a check found, for people."""
    lines = []
    for side in found.comparisons:
        lines += _comparison_lines(side)
    if found.sampling_errors:
        lines.append(f"sampling chose otherwise than the logits say {found.sampling_errors} times")
    if found.culprit is not None:
        culprit = found.culprit
        lines.append(
            f"first operator whose output differs: {culprit.operator} on group {culprit.group}, in "
            f"{culprit.phase}, by {culprit.difference:.2g} of its largest value"
        )
    elif not found.comparisons[0].good:
        lines.append("every operator by itself agrees: the fault is in how stages are put together")
    lines.append("the plan computes the same" if found.good else "the plan computes something else")
    return lines


def _comparison_lines(side: Comparison) -> list[str]:
    errors = [one for one in side.disagreements if not one.near_tie]
    ties = len(side.disagreements) - len(errors)
    lines = [
        f"against {side.reference}: largest logit difference {side.max_difference:.3g} "
        f"(allowed {side.allowed:.3g}) over {side.positions} positions; best token differs at "
        f"{len(side.disagreements)}: {ties} near-ties, {len(errors)} errors"
    ]
    for one in side.disagreements[:SHOWN]:
        kind = "near-tie" if one.near_tie else "error"
        lines.append(
            f"  slot {one.slot}, position {one.position}: {one.found} instead of {one.expected}, "
            f"{kind} (margin {one.margin:.3g})"
        )
    return lines
