"""Exact search: bound every combination, visit them best first, stop when none can win.

A combination is a template at one batch and number of microbatches. All are bounded first (a few
matrix products and one compiled pass). In the order of their bounds each is expanded over its
owner points by branch and bound, and what survives is simulated; the simulated round-trip time
alone decides. With ``bound=False`` nothing is cut by a bound; with ``pareto=False`` nothing is
dropped as dominated; the best plan is the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from weavejax.plan import Template
from weavejax.planner.candidates import (
    TIE_SLACK,
    Candidate,
    candidate_times_s,
    make_candidate,
)
from weavejax.planner.combination_bounds import combination_bounds, fitting_points
from weavejax.planner.expansion import COST, DEVICES, DUPLICATE, SLO, expand
from weavejax.planner.frontier import TIE, keep_undominated
from weavejax.planner.report import SearchCounts
from weavejax.planner.space import OwnerPoints, Space
from weavejax.planner.template_facts import TemplateFacts, template_traffic
from weavejax.planner.template_set import TemplateSet, build_template_set

Progress = Callable[[int, int, float | None], None]
"""(combinations done, combinations to do at most, cost of the best so far)"""

_SIMULATE_AT_ONCE = 4096
_KEPT_ALTERNATIVES = 64


@dataclass(kw_only=True)
class SearchState:
    """What a running search has found; usable whenever it is stopped."""

    best: Candidate | None = None
    others: dict[tuple[int, int], Candidate] = field(default_factory=dict)
    """Best simulated candidate of each (K, template)."""
    cut: NDArray[np.int64] = field(default_factory=lambda: np.zeros(4, dtype=np.int64))
    candidates: int = 0
    too_much_memory: int = 0
    dominated: int = 0
    bound_by_slo: int = 0
    bound_by_cost: int = 0
    simulated: int = 0
    missed_slo: int = 0
    short_bytes: float = np.inf
    """Least bytes missing over all combinations; 0 or less where one fits."""
    done: bool = False

    def counts(self) -> SearchCounts:
        return SearchCounts(
            candidates=self.candidates,
            too_much_memory=self.too_much_memory,
            dominated=self.dominated + int(self.cut[DUPLICATE]),
            too_many_devices=int(self.cut[DEVICES]),
            bound_by_slo=self.bound_by_slo + int(self.cut[SLO]),
            bound_by_cost=self.bound_by_cost + int(self.cut[COST]),
            simulated=self.simulated,
            missed_slo=self.missed_slo,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Combinations:
    """Bounds of all combinations of one K: ``[points, T]``."""

    templates: TemplateSet
    lower_s: NDArray[np.float64]
    lower_cost: NDArray[np.float64]
    fitting: NDArray[np.int64]
    """``[points, T]`` candidates whose replicas fit (interfaces not yet counted)."""


class Search:
    """One search over one space.

    Args:
        space: see :func:`weavejax.planner.space.build_space`.
        templates: for each K, what to cut.
        slo_s: target of the round-trip time.
        pareto, bound: reductions; the best plan does not depend on them.
        fastest: minimise the round-trip time instead of the cost.
        progress: called now and then.
    """

    def __init__(
        self,
        space: Space,
        templates: Mapping[int, Sequence[Template]],
        slo_s: float,
        *,
        pareto: bool = True,
        bound: bool = True,
        fastest: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self.space = space
        self.slo_s = slo_s
        self.pareto = pareto
        self.bound = bound
        self.fastest = fastest
        self.progress = progress
        self.state = SearchState()
        self.templates = templates
        devices = space.cluster.devices
        self.node_devices = np.array([spec.devices_per_node for spec, _ in devices])
        self.inventory = np.array([count for _, count in devices])
        self.least_latency_s = min(
            link.latency_s for spec, _ in devices for link in (spec.intra_node, spec.inter_node)
        )

    def run(self) -> SearchState:
        """Search to the end; a KeyboardInterrupt leaves ``state`` as it stands."""
        sets = [
            self._bound_all(build_template_set(self.space, groups, templates))
            for groups, templates in self.templates.items()
            if templates
        ]
        order = self._order(sets)
        told = time.monotonic()
        for rank, (cost, which, row, column) in enumerate(order):
            if self.bound and cost > self._cutoff():
                left = order[rank:]
                self.state.bound_by_cost += sum(int(sets[k].fitting[r, c]) for _, k, r, c in left)
                break
            self._visit(sets[which].templates, column, self.space.points[row])
            if self.progress is not None and time.monotonic() - told > 0.1:
                told = time.monotonic()
                best = self.state.best
                self.progress(rank + 1, len(order), None if best is None else best.usd_per_token)
        self.state.done = True
        return self.state

    def fitting(self) -> int:
        """How many candidates fit their memory, interfaces not counted; searches nothing."""
        return sum(
            int(self._bound_all(build_template_set(self.space, groups, templates)).fitting.sum())
            for groups, templates in self.templates.items()
            if templates
        )

    def _rates(self, points: OwnerPoints, groups: int) -> NDArray[np.float64]:
        if self.fastest:
            return np.full(len(points), 1.0 / groups)
        return points.usd_per_row_s

    def _cutoff(self) -> float:
        best = self.state.best
        return np.inf if best is None else best.usd_per_token * TIE_SLACK

    def _bound_all(self, templates: TemplateSet) -> _Combinations:
        """Bounds of every template at every batch and number of microbatches."""
        count, groups = len(templates), templates.groups
        shape = (len(self.space.points), count)
        lower_s, lower_cost = np.empty(shape), np.empty(shape)
        fitting = np.empty(shape, dtype=np.int64)
        owners = np.empty((count, groups), dtype=np.int64)
        short = np.empty(count)
        counts = templates.counts.reshape(count * groups, -1)
        path_s = templates.crossings * self.least_latency_s
        candidates = 0
        for row, points in enumerate(self.space.points):
            work_s = (counts @ points.class_s.T).reshape(count, groups, len(points))
            combination_bounds(
                work_s, templates.weight_bytes, templates.slot_bytes, templates.working_bytes,
                templates.kept_bytes, path_s, points.option, points.rows, points.microbatch_rows,
                points.slots, points.ways, self._rates(points, groups), points.limit_bytes,
                points.microbatches, lower_s[row], lower_cost[row], owners, short,
            )  # fmt: skip
            fitting[row] = owners.prod(axis=1)
            candidates += count * len(points) ** groups
            self.state.short_bytes = min(self.state.short_bytes, float(short.min()))
        self.state.candidates += candidates
        self.state.too_much_memory += candidates - int(fitting.sum())
        return _Combinations(
            templates=templates, lower_s=lower_s, lower_cost=lower_cost, fitting=fitting
        )

    def _order(self, sets: list[_Combinations]) -> list[tuple[float, int, int, int]]:
        """(cost bound, set, points, template) of what may hold a plan, best first."""
        order = []
        for which, combinations in enumerate(sets):
            possible = np.isfinite(combinations.lower_s)
            if self.bound:
                late = possible & (combinations.lower_s > self.slo_s)
                self.state.bound_by_slo += int(combinations.fitting[late].sum())
                possible &= ~late
            rows, columns = np.nonzero(possible)
            costs = combinations.lower_cost[rows, columns]
            order += zip(
                costs.tolist(), [which] * len(rows), rows.tolist(), columns.tolist(), strict=True
            )
        return sorted(order)

    def _visit(self, templates: TemplateSet, column: int, points: OwnerPoints) -> None:
        """Expand one combination and simulate what its bounds leave."""
        facts = templates.facts[column]
        work_s = templates.counts[column] @ points.class_s.T
        fits = self._fitting(templates, column, points, np.zeros(facts.groups, dtype=np.int64))
        if self.bound:
            # A first pass with the least traffic spares most templates the liveness rule.
            cut = np.zeros_like(self.state.cut)
            found, _, _ = self._expand(facts, points, work_s, fits, facts.least_pair_bytes, cut)
            if not len(found):
                self.state.cut += cut
                return
        traffic = template_traffic(
            self.space.config, facts.template, facts.groups, self.space.table.dtype_bytes
        )
        kept = self._fitting(templates, column, points, traffic.buffer_bytes_per_row)
        self.state.too_much_memory += _product(fits) - _product(kept)
        if self.pareto:
            before = _product(kept)
            self._drop_dominated(facts, points, kept)
            self.state.dominated += before - _product(kept)
        found, bounds, shares = self._expand(
            facts, points, work_s, kept, traffic.pair_bytes, self.state.cut
        )
        order = np.argsort(bounds[:, 1], kind="stable")
        size = 8 if self.bound else _SIMULATE_AT_ONCE
        start = 0
        while start < len(order):
            chosen = order[start : start + size]
            if self.bound and bounds[chosen[0], 1] > self._cutoff():
                self.state.bound_by_cost += len(order) - start
                break
            times_s = candidate_times_s(facts, traffic, points, found[chosen], shares[chosen])
            self._record(templates, column, points, found[chosen], times_s)
            start += size
            size = min(4 * size, _SIMULATE_AT_ONCE)

    def _fitting(
        self,
        templates: TemplateSet,
        column: int,
        points: OwnerPoints,
        interface_bytes_per_row: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        return fitting_points(
            templates.weight_bytes[column], templates.slot_bytes[column],
            templates.working_bytes[column], templates.kept_bytes[column],
            interface_bytes_per_row, points.option, points.rows, points.microbatch_rows,
            points.slots, points.ways, points.limit_bytes,
        )  # fmt: skip

    def _drop_dominated(
        self, facts: TemplateFacts, points: OwnerPoints, kept: NDArray[np.bool_]
    ) -> None:
        tolerance_s = TIE * self.slo_s
        for group, stages in enumerate(facts.distinct_stages):
            keep_undominated(
                stages, points.class_s, points.device_index, points.ways, points.replicas,
                tolerance_s, kept[group],
            )  # fmt: skip

    def _expand(
        self,
        facts: TemplateFacts,
        points: OwnerPoints,
        work_s: NDArray[np.float64],
        kept: NDArray[np.bool_],
        pair_bytes: NDArray[np.int64],
        cut: NDArray[np.int64],
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
        return expand(
            work_s, kept, points.microbatches, facts.pair_moves, pair_bytes,
            points.replicas, points.devices, points.device_index,
            self._rates(points, facts.groups), points.link_s_per_byte, points.link_latency_s,
            points.smaller_batch, self.node_devices, self.inventory,
            self.space.limits.max_devices, self.slo_s if self.bound else np.inf,
            self._cutoff() if self.bound else np.inf, self.pareto, cut,
        )  # fmt: skip

    def _record(
        self,
        templates: TemplateSet,
        column: int,
        points: OwnerPoints,
        found: NDArray[np.int64],
        times_s: NDArray[np.float64],
    ) -> None:
        self.state.simulated += len(found)
        late = times_s > self.slo_s
        self.state.missed_slo += int(late.sum())
        facts = templates.facts[column]
        rates = self._rates(points, facts.groups)
        costs = np.where(late, np.inf, times_s * rates[found].sum(axis=1))
        where = (facts.groups, column)
        known = self.state.others.get(where)
        limit = np.inf if known is None else known.usd_per_token
        near = np.isfinite(costs) & (costs <= min(limit, float(costs.min())) * TIE_SLACK)
        for index in np.flatnonzero(near):
            candidate = make_candidate(
                self.space, facts, column, points, found[index], float(times_s[index]), rates
            )
            known = self.state.others.get(where)
            if known is None or candidate.key < known.key:
                self.state.others[where] = candidate
            if self.state.best is None or candidate.key < self.state.best.key:
                self.state.best = candidate


def _product(kept: NDArray[np.bool_]) -> int:
    """Candidates that the kept points of all owners make."""
    return int(kept.sum(axis=1).prod())
