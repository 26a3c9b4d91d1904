"""A worker times its own stages and moves, apart from each other: what a prediction is made of."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from weavejax.schedule import Receive, Run
from weavejax.workers.frames import Header

if TYPE_CHECKING:
    from weavejax.workers.replica import Replica


def time_runs(replica: Replica, header: Header) -> list[float]:
    """Seconds of every ``Run`` of the group in one pass, each waited for by itself.

    Nothing moves; stages compute on zeros, which takes them as long. Sampling counts to the last
    stage.
    """
    runner, shape = (
        replica.runner,
        replica.runner.programs.shape(1, header["prefix"], prefill=False),
    )
    _fill(replica, header)
    seconds = []
    for action in replica.schedule.group_actions(replica.group):
        if not isinstance(action, Run):
            continue
        stage, microbatch = replica.stages.get(action.stage), action.microbatch
        if stage is None:  # is part of the stage before
            seconds.append(0.0)
            continue
        run = runner.bind_run(stage, microbatch, shape)
        jax.block_until_ready(runner.held)
        start_s = time.perf_counter()
        results = run()
        if stage.head is not None:
            results = runner.bind_head(microbatch, shape)()
        jax.block_until_ready(results)
        seconds.append(time.perf_counter() - start_s)
    return seconds


def time_moves(replica: Replica, header: Header) -> list[float]:
    """Seconds of one pass in which everything moves and nothing computes.

    The ids of the last boundary move like the rest. Called in every worker at once.
    """
    shape = replica.runner.programs.shape(1, header["prefix"], prefill=False)
    _fill(replica, header)
    steps = []
    ring = len(replica.schedule.occurrences) - 1
    actions = replica.schedule.group_actions(replica.group)
    # The iteration that is received at the start of the list is the one before: take it last.
    for action in sorted(actions, key=lambda action: action == Receive(ring, 0)):
        boundary, microbatch = getattr(action, "boundary", None), action.microbatch
        if boundary is None or microbatch != 0:
            continue
        if isinstance(action, Receive):
            steps.append(replica.bind_receive(boundary, microbatch, shape))
        else:
            steps.append(replica.bind_send(boundary, microbatch, shape))
    start_s = time.perf_counter()
    for step in steps:
        step()
    return [time.perf_counter() - start_s]


def _fill(replica: Replica, header: Header) -> None:
    """Zeros for every tensor that crosses a boundary, so that any action can be done alone."""
    shape = replica.runner.programs.shape(1, header["prefix"], prefill=False)
    tensors = {tensor.name: tensor for stage in replica.runner.stages for tensor in stage.reads}
    for interface in replica.schedule.interfaces:
        tensors |= {tensor.name: tensor for tensor in interface}
    for microbatch in range(replica.schedule.microbatches):
        held = replica.runner.held[microbatch]
        for name, tensor in tensors.items():
            if name not in held:
                wire = replica.runner.wire(tensor, shape)
                held[name] = jnp.zeros(wire.shape, wire.dtype, device=wire.sharding)
