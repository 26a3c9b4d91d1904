"""The steady decode step beside its own GEMMs, measured alternately in one run.

The bound is the time of the step's packed matrix products at the same batch and nothing else. A
ratio near one says that attention, norms, sampling and the host cost little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from weavejax.bench.interleaved import median_times_s
from weavejax.bench.subjects import plan_decode
from weavejax.models.loading import Model
from weavejax.models.products import project
from weavejax.plan import Plan
from weavejax.runtime.executor import Executor

Array = jax.Array
GEMM_WEIGHTS = ("qkv", "in_proj", "o", "gate_up", "down", "unembed")


@dataclass(frozen=True, kw_only=True)
class DecodePoint:
    """One batch and context."""

    batch: int
    context: int
    step_s: float
    """Median time of a decode iteration."""
    gemm_s: float
    """Median time of its matrix products alone."""

    @property
    def tokens_per_s(self) -> float:
        return self.batch / self.step_s

    @property
    def ratio(self) -> float:
        """Step over bound."""
        return self.step_s / self.gemm_s


def bench_decode(
    model: Model,
    make_plan: Callable[[int, int], Plan],
    batches: Sequence[int],
    contexts: Sequence[int],
    *,
    repeats: int = 5,
    iterations: int = 8,
    oversubscribe: bool = True,
    dtype: Any = None,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> list[DecodePoint]:
    """Measure every batch at every context.

    Args:
        model: what to run; dense models (experts have no single matrix product).
        make_plan: (batch, context) to a plan.
        batches: slots, all active.
        contexts: tokens every slot has in its cache.
        repeats: alternations of step and bound; medians are reported.
        iterations: decode iterations of one repeat.
        oversubscribe: let groups share devices.
        dtype: of the weights; the executor's choice by default.
        progress: called with (what, done, total).
    """
    points = []
    total = len(batches) * len(contexts)
    for batch in batches:
        for context in contexts:
            plan = make_plan(batch, context)
            executor = Executor(model, plan, oversubscribe=oversubscribe, dtype=dtype, chunks=(8,))
            gemms = _gemm_bound(executor, batch)
            subjects = {
                "step": plan_decode(executor, context, iterations),
                "gemms": lambda gemms=gemms: gemms(iterations),
            }
            times = median_times_s(subjects, repeats)
            points.append(
                DecodePoint(
                    batch=batch, context=context, step_s=times["step"], gemm_s=times["gemms"]
                )
            )
            progress("batch x context", len(points), total)
    return points


def _gemm_bound(executor: Executor, batch: int) -> Callable[[int], float]:
    """A function that times the model's matrix products at this batch, in seconds."""
    device = executor.meshes[0].devices.flat[0]
    matrices = [
        jax.device_put(_matrix(name, np.asarray(group.weights[index][name])), device)
        for group in executor.groups
        for index in sorted(group.weights)
        for name in GEMM_WEIGHTS
        if name in group.weights[index]
    ]
    dtype = matrices[0].dtype
    x = {
        size: jax.device_put(jnp.ones((batch, size), dtype), device)
        for size in {matrix.shape[1] for matrix in matrices}
    }

    def products(matrices: list[Array], x: dict[int, Array], zero: Array, column: Array) -> Array:
        total = jnp.zeros((batch,), dtype)
        for matrix in matrices:
            # A column of what comes out, which one the compiler does not know, goes into the next
            # times a zero that it does not know: products run in order, as in the model, and whole.
            # XLA drops a barrier and runs them side by side.
            row = x[matrix.shape[1]] + zero * total[:, None]
            total = project(row, matrix)[:, column]
        return total

    zero = jax.device_put(jnp.zeros((), dtype), device)
    column = jax.device_put(jnp.zeros((), jnp.int32), device)
    compiled = jax.jit(products).lower(matrices, x, zero, column).compile()
    jax.block_until_ready(compiled(matrices, x, zero, column))

    def measure(iterations: int) -> float:
        start = time.perf_counter()
        for _ in range(iterations):
            result = compiled(matrices, x, zero, column)
        jax.block_until_ready(result)
        return (time.perf_counter() - start) / iterations

    return measure


def _matrix(name: str, weight: np.ndarray) -> np.ndarray:
    """A packed weight as the matrix its operator multiplies by: ``[outputs, inputs]``."""
    if name in ("o", "down"):
        return weight.reshape(len(weight), -1)
    return weight.reshape(-1, weight.shape[-1])
