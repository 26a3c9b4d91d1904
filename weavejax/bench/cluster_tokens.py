"""The same tokens from workers as from one process, for templates of one to three groups."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from weavejax.default_plans import model_ref
from weavejax.engine import Engine
from weavejax.models.config import ModelConfig
from weavejax.models.loading import Model
from weavejax.plan import DeviceGroup, Plan, PlanError, Template, Workload
from weavejax.request import Output, SamplingParams
from weavejax.runtime.executor import Executor
from weavejax.schedule import check_plan
from weavejax.workers.executor import ClusterExecutor
from weavejax.workers.launch import Launcher
from weavejax.workers.options import WorkerOptions

LENGTHS = (1, 2, 5, 8, 9, 16, 17, 25, 33, 40, 3, 7, 11, 1)
"""Tokens of the prompts: on both sides of chunks, more prompts than slots."""


@dataclass(frozen=True, kw_only=True)
class TokensRow:
    """One plan."""

    name: str
    workers: int
    same: bool
    """Every request got the tokens of the colocated plan in one process."""
    logprob_difference: float
    start_s: float


def template_plans(config: ModelConfig, *, slots: int = 12, context: int = 64) -> dict[str, Plan]:
    """Plans of every kind that the model divides into, by name."""

    def group(replicas: int = 1, **ways: int) -> DeviceGroup:
        return DeviceGroup(
            device="cpu", replicas=replicas, resident_batch=slots // replicas, **ways
        )

    t, one, two, three = Template, group(), group(2), group(3)
    cut = group(tensor_parallel=2)
    rows = group(tensor_parallel=2, attention_data_parallel=2)
    cad = t(cuts=(1,), offset=1)
    candidates: dict[str, tuple[Template, tuple[DeviceGroup, ...], int]] = {
        "colocated": (t(), (one,), 1),
        "colocated, 3 replicas": (t(), (three,), 2),
        "afd": (t(cuts=(3,)), (one, one), 1),
        "afd, 2 microbatches": (t(cuts=(3,)), (one, one), 2),
        "cad": (cad, (one, one), 1),
        "before core": (t(cuts=(1,)), (one, one), 2),
        "after core": (t(cuts=(2,)), (one, one), 3),
        "offset 2": (t(cuts=(2,), offset=2), (one, one), 4),
        "two layers, four stages": (t(layers=2, cuts=(3, 4, 7)), (one, one), 1),
        "truncated": (t(layers=2, cuts=(5,), offset=2), (one, one), 1),
        "afd, 2 to 1": (t(cuts=(3,)), (two, one), 2),
        "afd, 1 to 2": (t(cuts=(3,)), (one, two), 1),
        "afd, 3 to 2": (t(cuts=(3,)), (three, two), 2),
        "cad, 2 to 3": (cad, (two, three), 2),
        "three groups": (t(cuts=(1, 2)), (one, one, one), 1),
        "three groups, 1 to 3 to 2": (t(cuts=(1, 3), offset=1), (one, three, two), 1),
        "cad, 2 ranks to 1": (cad, (cut, one), 3),
        "rows for attention, afd": (t(cuts=(3,)), (rows, two), 2),
    }
    plans = {}
    for name, (template, groups, microbatches) in candidates.items():
        plan = Plan(
            model=model_ref(config),
            workload=Workload(context=context),
            template=template,
            groups=groups,
            microbatches=microbatches,
        )
        try:
            check_plan(plan, config)
        except PlanError:
            continue  # heads or widths that do not divide, or too few layers
        plans[name] = plan
    return plans


def compare_tokens(
    model: Model,
    plans: dict[str, Plan],
    launcher: Callable[[], Launcher],
    *,
    options: WorkerOptions | None = None,
    lengths: Sequence[int] = LENGTHS,
    max_tokens: int = 12,
) -> Iterator[TokensRow]:
    """Serve the same prompts by every plan; rows come as they are known."""
    draw = np.random.default_rng(0)
    vocab = model.config.vocab_size
    prompts = [[int(token) for token in draw.integers(3, vocab, size=n)] for n in lengths]
    params = SamplingParams(max_tokens=max_tokens, logprobs=True, ignore_eos=True)
    reference = template_plans(model.config)["colocated"]
    with Engine(model, reference, Executor(model, reference, chunks=(8,))) as engine:
        expected = engine.generate(prompts, params)
    for name, plan in plans.items():
        start_s = time.perf_counter()
        starter = launcher()
        try:
            executor = ClusterExecutor(model, plan, starter, chunks=(8,), options=options)
        except BaseException:
            starter.close()
            raise
        ready_s = time.perf_counter()
        with Engine(model, plan, executor) as engine:
            outputs = engine.generate(prompts, params)
        yield TokensRow(
            name=name,
            workers=sum(group.replicas for group in plan.groups),
            same=[o.token_ids for o in outputs] == [o.token_ids for o in expected],
            logprob_difference=_largest_difference(outputs, expected),
            start_s=ready_s - start_s,
        )


def _largest_difference(outputs: Sequence[Output], expected: Sequence[Output]) -> float:
    return max(
        abs(ours - theirs)
        for output, wanted in zip(outputs, expected, strict=True)
        for ours, theirs in zip(output.logprobs or (), wanted.logprobs or (), strict=False)
    )
