"""Whether this machine's accelerator computes what the CPU does, and how fast it is at it.

One run on one device, without a network: every architecture and several plans on the device
beside the CPU of the same process, then decode steps beside what the device can do, the host's
cost, and a measured profile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from weavejax.bench.host import bench_host
from weavejax.bench.subjects import plan_decode
from weavejax.default_plans import default_plan, model_ref
from weavejax.measure.checking import check_executors
from weavejax.measure.machine import describe_device
from weavejax.measure.profiling import Grid, profile_model
from weavejax.models.loading import Model, load_model
from weavejax.models.sequence import operator_sequence
from weavejax.plan import DeviceGroup, Plan, Template, Workload
from weavejax.runtime.executor import Executor

Progress = Callable[[str, int, int], None]
ARCHITECTURES = (
    "llama-3.1-8b",
    "qwen3-0.6b",
    "gemma-3-27b",
    "qwen3-235b-a22b",
    "qwen3-next-80b-a3b",
    "gpt-oss-20b",
)
CUTS = {
    "afd": Template(cuts=(3,)),
    "cad": Template(cuts=(1,), offset=1),
    "three groups": Template(cuts=(1, 2)),
}
SLOTS, CONTEXT, PROMPT, LENGTH = 2, 48, 20, 32


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report."""

    what: str
    figure: str
    good: bool = True
    """False only where something was computed wrongly; a speed is never wrong."""


def check_architectures(
    device: Any, reference: Any, names: Sequence[str] = ARCHITECTURES
) -> Iterator[Finding]:
    """Logits of tiny models on the device beside the CPU, and of plans beside colocated.

    All in float32 with full-precision products. Groups of a plan share the device.
    """
    with _full_precision():
        for name in names:
            model = load_model(name, random_weights=True, scale="tiny")
            random = np.random.default_rng(0)
            tokens = random.integers(0, model.config.vocab_size, (SLOTS, LENGTH), dtype=np.int32)
            ours, theirs = (_run(model, _plan(model, Template()), d) for d in (device, reference))
            yield _compare(f"{name}, beside the CPU", model, ours, theirs, tokens)
            for cut, template in CUTS.items():
                executor = _run(model, _plan(model, template), device)
                yield _compare(f"{name}, {cut} beside colocated", model, executor, ours, tokens)


def _compare(
    what: str, model: Model, executor: Executor, reference: Executor, tokens: np.ndarray
) -> Finding:
    found = check_executors(model, executor, reference, tokens, prompt=PROMPT, tolerance=1e-3)
    [comparison] = found.comparisons
    figure = f"largest logit difference {comparison.max_difference:.1e}"
    if found.culprit is not None:
        figure += f", first in {found.culprit.operator}"
    return Finding(what=what, figure=figure, good=found.good)


def _plan(model: Model, template: Template) -> Plan:
    group = DeviceGroup(device="device", resident_batch=SLOTS)
    return Plan(
        model=model_ref(model.config),
        workload=Workload(context=CONTEXT),
        template=template,
        groups=(group,) * template.num_stages,
    )


def _run(model: Model, plan: Plan, device: Any) -> Executor:
    return Executor(
        model, plan, devices=[device], oversubscribe=True, dtype="float32", chunks=(PROMPT,)
    )


@contextmanager
def _full_precision() -> Iterator[None]:
    # Not jax.default_matmul_precision, which other threads, those that compile, do not see.
    before = getattr(jax.config, "jax_default_matmul_precision", None)
    jax.config.update("jax_default_matmul_precision", "highest")
    try:
        yield
    finally:
        jax.config.update("jax_default_matmul_precision", before)


def check_speed(
    model: Model, device: Any, points: Sequence[tuple[int, int]], iterations: int = 8
) -> Iterator[Finding]:
    """Decode steps beside the bandwidth and arithmetic that the device itself shows.

    Args:
        model: dense, large enough to fill the device.
        device: one device; its platform decides the dtype.
        points: (batch, context).
        iterations: of a step that is timed.
    """
    dtype = "float32" if device.platform == "cpu" else "bfloat16"
    can = describe_device("device", device, dtype)
    width = np.dtype("float32").itemsize if dtype == "float32" else 2
    operators = operator_sequence(model.config)
    # of the embedding a step reads a few rows only
    weights = sum(math.prod(param.shape) for op in operators[1:] for param in op.params)
    for batch, context in points:
        plan = default_plan(model.config, "colocated", slots=batch, context=context)
        executor = Executor(model, plan, devices=[device], dtype=dtype, chunks=(16,))
        subject = plan_decode(executor, context, iterations)
        subject()
        time_s = min(subject() for _ in range(3))
        caches = sum(state.elements(context) for op in operators for state in op.state)
        moved = width * (weights + batch * caches)
        flop = 2 * batch * weights
        yield Finding(
            what=f"decode, batch {batch}, context {context}",
            figure=(
                f"{time_s * 1e3:.2f} ms, {batch / time_s:.0f} tokens/s, "
                f"{moved / time_s / can.bandwidth_bytes_per_s:.0%} of the device's bandwidth, "
                f"{flop / time_s / can.bf16_flop_per_s:.0%} of its arithmetic"
            ),
        )


def check_host(model: Model) -> Iterator[Finding]:
    """What the host's thread spends per action of AFD on the default devices."""
    [point] = bench_host(model, [("afd", _plan(model, CUTS["afd"]))])
    yield Finding(
        what=f"host, {point.stages} stages",
        figure=f"{point.run_s * 1e6:.0f} us a Run, {point.move_s * 1e6:.0f} us a move",
    )


def check_profile(model: Model, out: Path, rows: Sequence[int], context: int) -> Iterator[Finding]:
    """A profile of the model's operators on the default devices, kept in ``out``."""
    grid = Grid(rows=tuple(rows), contexts=(context,))
    profile_model(model, grid, device="device", out=out, repeats=3)
    yield Finding(what="profile of the operators", figure=f"kept in {out}")
