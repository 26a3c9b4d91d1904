"""What is timed: a decode iteration and a prefill, of a plan and of transformers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from weavejax.bench.interleaved import Subject
from weavejax.runtime.batches import PrefillBatch, greedy_rows
from weavejax.runtime.executor import Executor


def plan_decode(executor: Executor, context: int, iterations: int) -> Subject:
    """Seconds of a decode iteration of a plan, every slot active and near ``context`` tokens."""
    rows = executor.plan.microbatch_rows
    ones = np.ones(rows, np.int32)
    start_at = max(0, context - iterations - 1)
    work = dict.fromkeys(range(executor.plan.microbatches), context)

    def run() -> float:
        for microbatch in work:
            executor.set_rows(microbatch, ones * start_at, ones, greedy_rows(rows))
        executor.wait()
        start = time.perf_counter()
        for _ in range(iterations):
            results = executor.decode(work)
        jax.block_until_ready(results)
        executor.wait()
        return (time.perf_counter() - start) / iterations

    return run


def plan_prefill(executor: Executor, tokens: Sequence[int]) -> Subject:
    """Seconds to the first token of one prompt that nothing else runs beside."""
    chunk = executor.chunks[-1]
    cells = executor.cells.count
    zeros = np.zeros(cells, np.int32)
    batches = []
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        ids = np.zeros((cells, chunk), np.int32)
        ids[0, : len(part)] = part
        first = np.arange(cells) == 0
        batches.append(
            PrefillBatch(
                microbatch=0,
                tokens=ids,
                starts=np.where(first, start, zeros).astype(np.int32),
                lengths=np.where(first, len(part), zeros).astype(np.int32),
                slots=zeros,
                done=first & (start + chunk >= len(tokens)),
                sampling=greedy_rows(cells),
            )
        )

    def run() -> float:
        executor.wait()
        begin = time.perf_counter()
        for batch in batches:
            result = executor.prefill(batch)
        jax.block_until_ready(result)
        return time.perf_counter() - begin

    return run


def transformers_variants(model: Any) -> dict[str, Any]:
    """One transformers module in every attention and dtype a user would try on this machine.

    Args:
        model: a float32 module.

    Returns:
        Modules by name, such as ``transformers sdpa float32``.
    """
    import copy

    import torch

    variants = {}
    for dtype in (torch.float32, torch.bfloat16):
        for attention in ("eager", "sdpa"):
            variant = copy.deepcopy(model).to(dtype)
            variant.set_attn_implementation(attention)
            name = str(dtype).removeprefix("torch.")
            variants[f"transformers {attention} {name}"] = variant
    return variants


def transformers_decode(model: Any, batch: int, context: int, iterations: int) -> Subject:
    """Seconds of a step of transformers: its forward with its own cache, and an argmax.

    The cache holds what a decode of ``iterations`` steps up to ``context`` tokens starts from.
    This leaves out everything else that its ``generate`` does around a step.
    """
    import torch

    start_at = max(1, context - iterations - 1)
    with torch.inference_mode():
        prompt = torch.ones((batch, start_at), dtype=torch.long)
        cache = model(prompt, use_cache=True, logits_to_keep=1).past_key_values

    def run() -> float:
        with torch.inference_mode():
            surplus = cache.get_seq_length() - start_at
            if surplus:
                cache.crop(-surplus)
            ids = torch.ones((batch, 1), dtype=torch.long)
            ids = _step(model, ids, cache)
            begin = time.perf_counter()
            for _ in range(iterations):
                ids = _step(model, ids, cache)
            return (time.perf_counter() - begin) / iterations

    return run


def _step(model: Any, ids: Any, cache: Any) -> Any:
    logits = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
    return logits[:, -1:].argmax(-1)


def transformers_prefill(model: Any, tokens: Sequence[int]) -> Subject:
    """Seconds of transformers to the first token of one prompt."""
    import torch

    def run() -> float:
        with torch.inference_mode():
            prompt = torch.tensor([list(tokens)])
            begin = time.perf_counter()
            model(prompt, use_cache=True, logits_to_keep=1).logits[:, -1].argmax(-1)
            return time.perf_counter() - begin

    return run
