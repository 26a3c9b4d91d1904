"""Plans beside transformers on the same weights, and llama.cpp, as ratios measured in one run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from weavejax.bench.interleaved import Progress, Subject, median_times_s
from weavejax.bench.llama_contestant import LLAMA_CPP, LlamaCpp, cores_here
from weavejax.bench.subjects import (
    plan_decode,
    plan_prefill,
    transformers_decode,
    transformers_prefill,
    transformers_variants,
)
from weavejax.measure.reference import transformers_model
from weavejax.models.loading import Model
from weavejax.plan import Plan
from weavejax.runtime.executor import Executor

FAR = 2.5
"""A variant of transformers that is this many times as slow as its fastest is not timed again."""


@dataclass(frozen=True, kw_only=True)
class ComparedPoint:
    """One piece of work and what everyone took for it."""

    work: str
    """``decode`` or ``prefill``."""
    batch: int
    tokens: int
    """Context of a decode, prompt of a prefill."""
    times_s: dict[str, float]
    """Median seconds of an iteration, or of a prompt; plans by policy, and in a dtype that is not
    the first by ``policy dtype``."""

    @property
    def ratio(self) -> float | None:
        """How many times as fast the first plan is as transformers, each in its fastest variant."""
        first = next(iter(self.times_s))
        theirs = [t for name, t in self.times_s.items() if name.startswith("transformers")]
        ours = [t for name, t in self.times_s.items() if name.split(" ")[0] == first]
        return min(theirs) / min(ours) if theirs else None

    def over_first(self, name: str) -> float:
        """Time of ``name`` over that of the first plan."""
        return self.times_s[name] / next(iter(self.times_s.values()))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def bench_compare(
    model: Model,
    make_plan: Callable[[str, int, int], Plan],
    plans: Sequence[str],
    *,
    batches: Sequence[int] = (1, 8, 32),
    context: int = 128,
    prompt_tokens: int = 512,
    dtypes: Sequence[str] = ("float32",),
    against: Sequence[str] = ("transformers",),
    rounds: int = 5,
    iterations: int = 4,
    progress: Progress = lambda what, done, total: None,
) -> list[ComparedPoint]:
    """Decode at every batch and the prefill of one prompt, everyone in turns.

    Args:
        model: with weights that the others can hold too.
        make_plan: (policy, batch, context) to a plan.
        plans: policies; ratios are of the first.
        batches: slots, all active.
        context: tokens in every slot's cache.
        prompt_tokens: length of the prompt; 0 leaves prefill out.
        dtypes: of the plans' weights and caches.
        against: ``transformers`` with its eager and SDPA attention in float32 and bfloat16,
            ``llama.cpp`` with the GGUF file as it is; or nobody.
        rounds: turns; medians are reported.
        iterations: decode iterations of a turn.
        progress: called with (what, done, total).

    Raises:
        ValueError: one of them is asked for and is not there, or knows no such model.
    """
    variants = _variants(model) if "transformers" in against else {}
    llama = LlamaCpp(model, cores_here()) if LLAMA_CPP in against else None
    points = []
    for batch in batches:
        subjects: dict[str, Subject] = {}
        for (plan, dtype), name in _named(plans, dtypes).items():
            made = make_plan(plan, batch, context)
            executor = Executor(model, made, oversubscribe=True, dtype=dtype, chunks=(8,))
            subjects[name] = plan_decode(executor, context, iterations)
        for name, theirs in variants.items():
            subjects[name] = transformers_decode(theirs, batch, context, iterations)
        if llama is not None:
            subjects[LLAMA_CPP] = llama.decode(batch, context, iterations)
        point = _measure("decode", batch, context, subjects, rounds, progress)
        points.append(point)
    if prompt_tokens:
        random = np.random.default_rng(0)
        tokens = random.integers(0, model.config.vocab_size, prompt_tokens).tolist()
        subjects = {}
        for (plan, dtype), name in _named(plans, dtypes).items():
            executor = Executor(
                model,
                make_plan(plan, 1, prompt_tokens + 1),
                oversubscribe=True,
                dtype=dtype,
                chunks=(prompt_tokens,),
            )
            subjects[name] = plan_prefill(executor, tokens)
        for name, theirs in variants.items():
            subjects[name] = transformers_prefill(theirs, tokens)
        if llama is not None:
            subjects[LLAMA_CPP] = llama.prefill(tokens)
        points.append(_measure("prefill", 1, prompt_tokens, subjects, rounds, progress))
    return points


def _named(plans: Sequence[str], dtypes: Sequence[str]) -> dict[tuple[str, str], str]:
    """Names in the table of every plan in every dtype."""
    return {
        (plan, dtype): plan if dtype == dtypes[0] else f"{plan} {dtype}"
        for dtype in dtypes
        for plan in plans
    }


def _measure(
    work: str,
    batch: int,
    tokens: int,
    subjects: dict[str, Subject],
    rounds: int,
    progress: Progress,
) -> ComparedPoint:
    warm = {name: subject() for name, subject in subjects.items()}
    theirs = {name: time_s for name, time_s in warm.items() if name.startswith("transformers")}
    far = {name for name, time_s in theirs.items() if time_s > FAR * min(theirs.values())}
    subjects = {name: subject for name, subject in subjects.items() if name not in far}
    label = f"{work}, batch {batch}"
    times = median_times_s(subjects, rounds, lambda _, done, total: progress(label, done, total))
    return ComparedPoint(work=work, batch=batch, tokens=tokens, times_s=times)


def _variants(model: Model) -> dict[str, Any]:
    if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")):
        raise ValueError(
            "a comparison with transformers needs torch and transformers: "
            "pip install 'weavejax[test]', or leave --against out"
        )
    theirs = transformers_model(model)
    if theirs is None:
        raise ValueError(f"transformers has no config for {model.config.name}; leave --against out")
    return transformers_variants(theirs)
