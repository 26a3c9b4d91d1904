"""Continuous batching beside static batches of the same size, on requests of mixed length."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from weavejax.bench.requests import BenchRequest
from weavejax.engine import Engine
from weavejax.request import SamplingParams


@dataclass(frozen=True, kw_only=True)
class BatchingResult:
    """Medians over rounds that alternate both ways."""

    requests: int
    slots: int
    output_tokens: int
    continuous_s: float
    static_s: float

    @property
    def ratio(self) -> float:
        """Throughput of continuous batching over that of static batches."""
        return self.static_s / self.continuous_s


def mixed_requests(
    count: int, input_tokens: int, output_tokens: int, *, vocab_size: int, sigma: float = 1.0
) -> list[BenchRequest]:
    """Random requests whose answers have lognormal lengths, as served traffic has.

    Args:
        count: how many.
        input_tokens: of every prompt.
        output_tokens: mean length of the answers; none is longer than eight times that.
        vocab_size: ids are drawn below it.
        sigma: of the logarithm of the lengths.
    """
    random = np.random.default_rng(0)
    mean = math.log(output_tokens) - sigma**2 / 2
    lengths = np.clip(random.lognormal(mean, sigma, count).round(), 1, 8 * output_tokens)
    return [
        BenchRequest(
            prompt=random.integers(0, vocab_size, input_tokens).tolist(), max_tokens=int(length)
        )
        for length in lengths
    ]


def bench_batching(
    engine: Engine,
    requests: Sequence[BenchRequest],
    *,
    rounds: int = 1,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> BatchingResult:
    """All requests at once, and one batch after another that each wait for their longest answer.

    Raises:
        RuntimeError: the two ways gave different tokens.
    """
    prompts = [request.prompt for request in requests]
    params = [SamplingParams(max_tokens=r.max_tokens, ignore_eos=True) for r in requests]
    slots = engine.plan.batch
    continuous, static = [], []
    tokens = 0
    for done in range(rounds):
        start = time.perf_counter()
        together = engine.generate(prompts, params)
        continuous.append(time.perf_counter() - start)
        progress("continuous and static", 2 * done + 1, 2 * rounds)
        start = time.perf_counter()
        apart = []
        for first in range(0, len(prompts), slots):
            part = slice(first, first + slots)
            apart += engine.generate(prompts[part], params[part])
        static.append(time.perf_counter() - start)
        progress("continuous and static", 2 * done + 2, 2 * rounds)
        if [o.token_ids for o in together] != [o.token_ids for o in apart]:
            raise RuntimeError("continuous and static batching gave different tokens")
        tokens = sum(len(output.token_ids) for output in together)
    return BatchingResult(
        requests=len(prompts),
        slots=slots,
        output_tokens=tokens,
        continuous_s=statistics.median(continuous),
        static_s=statistics.median(static),
    )
