"""The planner with its reductions switched off (paper Table 3).

Four rows: both reductions, without the Pareto frontiers, without the bounds, without either. Rows
without bounds simulate every candidate that fits; a row that would simulate too many runs on a
smaller grid, which it names, beside the full search on that same grid. Nothing is estimated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

from weavejax.meshes.cluster import as_cluster
from weavejax.models.presets import resolve_config
from weavejax.planner.api import (
    ClusterLike,
    ModelLike,
    resolve_profile,
    search,
    search_templates,
)
from weavejax.planner.branch_and_bound import Search
from weavejax.planner.latency import LatencyProfile, with_cluster
from weavejax.planner.limits import SearchLimits
from weavejax.planner.space import build_space

TABLE3_LIMITS = SearchLimits(offsets=False)
"""The paper's limits (32 devices, 3 groups, 4 replicas, 4 microbatches), with data-parallel
attention."""

PAPER_TABLE3 = MappingProxyType(
    {
        "h100": {
            "full": (4.78e6, 4.78e6, 228.3),
            "no pareto": (8.83e6, 8.83e6, 264.4),
            "no bound": (219.79e6, 4.78e6, 290.3),
            "neither": (293.24e6, 8.83e6, 330.5),
        },
        "a100+h100": {
            "full": (13.89e6, 13.89e6, 446.7),
            "no pareto": (52.14e6, 52.14e6, 776.4),
            "no bound": (630.97e6, 13.89e6, 636.6),
            "neither": (2330e6, 52.14e6, 1495.8),
        },
    }
)
"""(candidates, simulations, seconds on 64 cores) of the paper, Gemma-3-27B at 32K and 60 ms."""

ROWS = (("full", True, True), ("no pareto", False, True), ("no bound", True, False),
        ("neither", False, False))  # fmt: skip
"""(name, pareto, bound)"""


@dataclass(frozen=True, kw_only=True)
class AblationRow:
    """One search."""

    name: str
    grid: str
    """``whole``, or what was left out to keep the row short."""
    candidates: int
    """Of the grid."""
    considered: int
    """Fit memory and devices and are not dominated."""
    simulated: int
    seconds: float
    usd_per_million_tokens: float | None


def ablation(
    model: ModelLike,
    cluster: ClusterLike,
    context: int,
    tpot_slo_s: float,
    *,
    limits: SearchLimits = TABLE3_LIMITS,
    profile: LatencyProfile | str | None = None,
    max_simulations: int = 5_000_000,
) -> tuple[AblationRow, ...]:
    """Run the four rows.

    Args:
        model, cluster, context, tpot_slo_s, profile: as for :func:`weavejax.planner.plan`.
        limits: the whole grid.
        max_simulations: a row without bounds takes the largest grid of :func:`smaller_grids` whose
            fitting candidates are at most this many.

    Returns:
        The rows in order; a row on a smaller grid is preceded by ``full`` on that grid.
    """
    rows: list[AblationRow] = []
    small = None
    for name, pareto, bound in ROWS:
        grid, chosen = "whole", limits
        if not bound:
            if small is None:
                small = _affordable(
                    model, cluster, context, tpot_slo_s, limits, profile, max_simulations
                )
            grid, chosen = small
        tasks = [(name, pareto, bound)]
        if grid != "whole" and not any(row.grid == grid for row in rows):
            tasks.insert(0, ROWS[0])
        for title, use_pareto, use_bound in tasks:
            report = search(
                model,
                cluster,
                context,
                tpot_slo_s,
                limits=chosen,
                profile=profile,
                pareto=use_pareto,
                bound=use_bound,
            )
            if report.best is None or not report.proven:
                raise KeyboardInterrupt("the ablation was interrupted")
            prediction = report.best.prediction
            rows.append(
                AblationRow(
                    name=title,
                    grid=grid,
                    candidates=report.counts.candidates,
                    considered=report.counts.considered,
                    simulated=report.counts.simulated,
                    seconds=report.seconds,
                    usd_per_million_tokens=prediction.usd_per_million_tokens
                    if prediction
                    else None,
                )
            )
    return tuple(rows)


def smaller_grids(limits: SearchLimits) -> Iterator[tuple[str, SearchLimits]]:
    """The whole grid and ever smaller ones, each with what it leaves out."""
    yield "whole", limits
    left_out = []
    powers = tuple(b for b in limits.batches if b & (b - 1) == 0) or limits.batches[:1]
    changes: list[tuple[str, dict[str, object]]] = [
        ("no data-parallel attention", {"attention_data_parallel": False}),
        ("batches are powers of two", {"batches": powers}),
        ("sub-blocks of at most 3 layers", {"sub_blocks": _short(limits.sub_blocks)}),
        ("at most 2 replicas", {"max_replicas": min(2, limits.max_replicas)}),
        ("at most 2 microbatches", {"max_microbatches": min(2, limits.max_microbatches)}),
        ("at most 2 groups", {"max_groups": min(2, limits.max_groups)}),
    ]
    for words, change in changes:
        limits = dataclasses.replace(limits, **change)  # type: ignore[arg-type]
        left_out.append(words)
        yield ", ".join(left_out), limits


def _short(sub_blocks: tuple[int, ...] | None) -> tuple[int, ...]:
    return tuple(n for n in (1, 2, 3) if sub_blocks is None or n in sub_blocks)


def fitting_candidates(
    model: ModelLike,
    cluster: ClusterLike,
    context: int,
    tpot_slo_s: float,
    limits: SearchLimits,
    profile: LatencyProfile | str | None = None,
) -> int:
    """Candidates of a grid whose replicas fit their memory."""
    config, inventory = resolve_config(model), as_cluster(cluster)
    latencies = with_cluster(resolve_profile(profile), inventory)
    space = build_space(config, inventory, context, limits, latencies)
    return Search(space, search_templates(config, limits, "weave"), tpot_slo_s).fitting()


def _affordable(
    model: ModelLike,
    cluster: ClusterLike,
    context: int,
    tpot_slo_s: float,
    limits: SearchLimits,
    profile: LatencyProfile | str | None,
    max_simulations: int,
) -> tuple[str, SearchLimits]:
    grids = list(smaller_grids(limits))
    for grid, chosen in grids[:-1]:
        count = fitting_candidates(model, cluster, context, tpot_slo_s, chosen, profile)
        if count <= max_simulations:
            return grid, chosen
    return grids[-1]
