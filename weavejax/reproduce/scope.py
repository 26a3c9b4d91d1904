"""What the paper evaluates: models, contexts, targets, limits, and the numbers it states."""

from __future__ import annotations

import dataclasses
import functools
import json
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from weavejax.meshes.cluster import Cluster
from weavejax.models.presets import preset_config
from weavejax.planner import SearchLimits
from weavejax.workbench.cases import Case
from weavejax.workbench.searches import Report, Searches

GEMMA, QWEN = "gemma-3-27b", "qwen3-next-80b-a3b"
BASELINES = ("colocated", "afd", "cad")
POLICIES = (*BASELINES, "weave")

PAPER_LIMITS = SearchLimits(offsets=False, attention_data_parallel=False)
"""32 devices, 3 groups, 4 replicas, 4 microbatches (section 7), stages that start at a layer
boundary (section 5), tensor and expert parallelism (section 4)."""


@functools.cache
def paper() -> dict[str, Any]:
    """The values the paper states.

    Examples:
        >>> paper()["fig9"]["max_gain"]["gemma-3-27b"]
        1.78
    """
    return json.loads(resources.files("weavejax.reproduce").joinpath("paper.json").read_text())


@dataclass(frozen=True, kw_only=True)
class Scope:
    """How much of the evaluation to run; the default is all of it."""

    models: tuple[str, ...] = (GEMMA, QWEN)
    contexts: tuple[int, ...] = (8192, 32768, 131072)
    strict: bool = True
    """Also the strict targets of Table 2; False leaves the relaxed ones."""
    limits: SearchLimits = PAPER_LIMITS
    max_simulations: int = 5_000_000
    """Of a row of Table 3 without bounds, before it takes a smaller grid."""

    def slos_s(self, model: str) -> tuple[float, ...]:
        """Targets of a model in seconds, the relaxed one last."""
        both = tuple(ms / 1e3 for ms in paper()["slos_ms"][model])
        return both if self.strict else both[-1:]


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What figures share: the scope, the pool that searches, and where progress goes."""

    scope: Scope = field(default_factory=Scope)
    searches: Searches
    progress: Report | None = None

    def run(self, cases: dict[Any, Case], what: str) -> dict[Any, Any]:
        """Outcome of every case, by the same keys."""
        outcomes = self.searches.run(list(cases.values()), progress=self.progress, what=what)
        return dict(zip(cases, outcomes, strict=True))


def case(scope: Scope, model: str, cluster: str, context: int, slo_s: float, policy: str) -> Case:
    """One setting of the paper.

    ``weave`` means two or more groups, as its figures show it. CAD, outside the paper's space, is
    a template with an offset.
    """
    limits = scope.limits
    if policy == "cad":
        limits = dataclasses.replace(limits, offsets=True)
    if policy == "weave":
        limits = dataclasses.replace(limits, min_groups=2, max_groups=max(2, limits.max_groups))
    return Case(
        config=preset_config(model),
        cluster=Cluster.parse(cluster),
        context=context,
        tpot_slo_s=slo_s,
        policy=policy,
        limits=limits,
    )
