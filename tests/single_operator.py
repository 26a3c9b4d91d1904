"""One operator by itself: random weights, empty caches and steps over some rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from weavejax.models.build import build_operator
from weavejax.models.config import ModelConfig
from weavejax.models.operator import Operator
from weavejax.models.packing import operator_params
from weavejax.models.random_source import RandomSource
from weavejax.models.sequence import operator_sequence
from weavejax.models.step import Step

Arrays = dict[str, jax.Array]
Run = Callable[[Arrays, Arrays, Step], tuple[Arrays, Arrays]]


def make_operator(config: ModelConfig, name: str, seed: int = 0) -> tuple[Operator, Arrays]:
    """An operator of the sequence and its parameters, packed for one rank."""
    op = next(op for op in operator_sequence(config) if op.name == name)
    params = operator_params(op, config, RandomSource(config, seed=seed))
    arrays = {name: jnp.asarray(value) for name, value in params.items()}
    return build_operator(op, config, arrays), arrays


def make_caches(operator: Operator, slots: int, context: int, fill: float = 0.0) -> Arrays:
    """Caches of an operator on one rank; ``fill`` is what an earlier request left behind."""
    caches: Arrays = {}
    for state in operator.spec.state:
        shape = state.shape(slots, state.dims[0].count, context)
        caches[state.name] = jnp.full(shape, fill, jnp.float32)
    return caches


def make_step(
    starts: Sequence[int],
    lengths: Sequence[int],
    tokens: int,
    *,
    context: int,
    slots: Sequence[int] | None = None,
) -> Step:
    """Rows that begin at ``starts`` and have ``lengths`` real tokens of ``tokens``."""
    steps = np.arange(tokens)
    return Step(
        positions=jnp.asarray(np.asarray(starts)[:, None] + steps, jnp.int32),
        active=jnp.asarray(steps < np.asarray(lengths)[:, None]),
        slots=None if slots is None else jnp.asarray(slots, jnp.int32),
        prefix=context,
    )


def compile_operator(operator: Operator) -> Run:
    """``operator`` itself, compiled once for every shape it meets."""

    @partial(jax.jit, static_argnames="prefix")
    def run(
        tensors: Arrays,
        caches: Arrays,
        positions: jax.Array,
        active: jax.Array,
        slots: jax.Array | None,
        prefix: int,
    ) -> tuple[Arrays, Arrays]:
        step = Step(positions=positions, active=active, slots=slots, prefix=prefix)
        return operator(tensors, caches, step)

    return lambda tensors, caches, step: run(
        tensors, caches, step.positions, step.active, step.slots, prefix=step.prefix
    )
