"""Teacher forcing: what a plan computes along given tokens, at every position and slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from weavejax.models.build import build_operator
from weavejax.models.loading import Model
from weavejax.models.sequence import operator_sequence
from weavejax.models.step import Step
from weavejax.runtime.batches import PrefillBatch, greedy_rows
from weavejax.runtime.cells import Cells
from weavejax.runtime.executor import Executor


@dataclass(frozen=True, kw_only=True)
class Forced:
    """Along ``tokens`` of every slot."""

    logits: np.ndarray
    """``[slots, length, vocab]`` float32: after each token."""
    chosen: np.ndarray
    """``[slots, steps]`` what the plan's own sampling answered to the tokens that were decoded."""


def force(executor: Executor, model: Model, tokens: np.ndarray, prompt: int) -> Forced:
    """Run a plan along given tokens: a prompt in chunks, the rest one by one.

    Args:
        executor: of the plan.
        model: what it runs.
        tokens: ``[slots, length]`` int32, one row for every slot of the plan.
        prompt: tokens of each row that are prefilled.
    """
    logits_of = logits_function(executor, model)
    name, last = _last_tensor(executor)
    logits = []
    for start, length in chunks_of(prompt, executor.chunks[-1]):
        found = np.zeros((len(tokens), length, model.config.vocab_size), np.float32)
        for batch, slots in chunk_batches(
            executor.cells, tokens, start, length, executor.chunks[-1], prompt
        ):
            executor.prefill(batch)
            x = np.asarray(executor.groups[last].chunk_held[name])[:, :length]
            found[slots] = logits_of(x)
        logits.append(found)
    chosen = []
    for position in range(prompt, tokens.shape[1]):
        results = step(executor, tokens[:, position], position)
        xs = [np.asarray(held[name]) for held in executor.groups[last].held]
        logits.append(logits_of(np.concatenate(xs)))
        chosen.append(np.concatenate([np.asarray(ids) for ids, _ in results]))
    return Forced(logits=np.concatenate(logits, axis=1), chosen=np.stack(chosen, axis=1))


def step(executor: Executor, tokens: np.ndarray, position: int) -> list[Any]:
    """Decode once with given input tokens ``[slots]``; the results by microbatch."""
    rows = executor.cells.microbatch_rows
    ones = np.ones(rows, np.int32)
    first = executor.groups[executor.stages[0].owner]
    for microbatch in range(executor.cells.microbatches):
        part = tokens[microbatch * rows :][:rows].astype(np.int32)
        executor.set_rows(microbatch, ones * position, ones, greedy_rows(rows))
        first.held[microbatch]["ids"] = first.put(part, wire=True)
    prefixes = dict.fromkeys(range(executor.cells.microbatches), position + 1)
    results = executor.decode(prefixes)
    return [results[microbatch] for microbatch in sorted(results)]


def chunks_of(prompt: int, most: int) -> list[tuple[int, int]]:
    """(start, length) of the chunks a prompt is prefilled in.

    Examples:
        >>> chunks_of(20, 8)
        [(0, 8), (8, 8), (16, 4)]
    """
    return [(start, min(most, prompt - start)) for start in range(0, prompt, most)]


def chunk_batches(
    cells: Cells, tokens: np.ndarray, start: int, length: int, chunk: int, prompt: int
) -> list[tuple[PrefillBatch, list[int]]]:
    """The passes that prefill one chunk of every slot, each with the slots of its cells."""
    batches = []
    for microbatch in range(cells.microbatches):
        for row in range(cells.rows):
            slots = [
                microbatch * cells.microbatch_rows + cell * cells.rows + row
                for cell in range(cells.count)
            ]
            padded = np.zeros((cells.count, chunk), np.int32)
            padded[:, :length] = tokens[slots, start : start + length]
            ones = np.ones(cells.count, np.int32)
            batch = PrefillBatch(
                microbatch=microbatch,
                tokens=padded,
                starts=ones * start,
                lengths=ones * length,
                slots=ones * row,
                done=np.full(cells.count, start + length == prompt),
                sampling=greedy_rows(cells.count),
            )
            batches.append((batch, slots))
    return batches


def logits_function(executor: Executor, model: Model) -> Callable[[np.ndarray], np.ndarray]:
    """``x`` ``[b, t, hidden]`` to logits by the head's weights of the plan's last group."""
    spec = operator_sequence(model.config)[-1]
    weights = executor.groups[executor.stages[-1].owner].weights[spec.index]
    params = {name: jnp.asarray(np.asarray(value)) for name, value in weights.items()}
    nothing = jnp.zeros((1, 1), jnp.int32)
    one = Step(positions=nothing, active=nothing == 0, slots=None, prefix=0)

    @jax.jit
    def run(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        outputs, _ = build_operator(spec, model.config, params)({"x": x}, {}, one)
        return outputs["logits"]

    return lambda x: np.asarray(run(params, jnp.asarray(x)), np.float32)


def _last_tensor(executor: Executor) -> tuple[str, int]:
    """Name of what the head reads, and the group that holds it."""
    stage = executor.stages[-1]
    assert stage.head is not None
    return stage.head.inputs[0].name, stage.owner
