"""A minute of ratios with wide margins, so that no large regression lands unseen.

Margins are about twice what a quiet machine shows, because others may use it too: they catch a
copy in a hot path or a program that is compiled in the loop, not a few per cent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from weavejax.bench.batching import bench_batching, mixed_requests
from weavejax.bench.compare import bench_compare
from weavejax.bench.decode import bench_decode
from weavejax.bench.interleaved import Progress
from weavejax.models.loading import Model
from weavejax.plan import Plan
from weavejax.serve import serve


@dataclass(frozen=True, kw_only=True)
class Check:
    """One ratio and its margin."""

    name: str
    value: float
    margin: float
    at_most: bool

    @property
    def holds(self) -> bool:
        """Whether the ratio is on the right side of its margin."""
        return self.value <= self.margin if self.at_most else self.value >= self.margin


def bench_smoke(
    model: Model,
    make_plan: Callable[[str, int, int], Plan],
    *,
    progress: Progress = lambda what, done, total: None,
) -> list[Check]:
    """Measure every ratio once.

    Args:
        model: dense; large enough that arithmetic dominates.
        make_plan: (policy, batch, context) to a plan.
        progress: called with (what, done, total).
    """
    [step] = bench_decode(
        model, lambda batch, context: make_plan("colocated", batch, context), [8], [128], repeats=5
    )
    progress("ratios", 1, 3)
    [plans] = bench_compare(
        model,
        make_plan,
        ["colocated", "afd", "cad"],
        batches=[8],
        prompt_tokens=0,
        against=(),
    )
    progress("ratios", 2, 3)
    requests = mixed_requests(24, 4, 8, vocab_size=model.config.vocab_size)
    with serve(model, "colocated", slots=4, context=128, prefill_chunks=(8,)) as engine:
        batching = bench_batching(engine, requests)
    progress("ratios", 3, 3)
    return [
        Check(name="decode step over its GEMMs", value=step.ratio, margin=2.5, at_most=True),
        Check(name="afd over colocated", value=plans.over_first("afd"), margin=3.0, at_most=True),
        Check(name="cad over colocated", value=plans.over_first("cad"), margin=3.0, at_most=True),
        Check(
            name="continuous over static batching",
            value=batching.ratio,
            margin=1.2,
            at_most=False,
        ),
    ]
