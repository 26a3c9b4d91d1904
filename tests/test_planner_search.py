"""Search finds what trying every candidate finds, whatever it leaves out."""

import dataclasses
import itertools
import math

import pytest
from planner_fakes import problem

from weavejax.merging import merge_occurrences
from weavejax.plan import DeviceGroup, ModelRef, Plan, Template, Workload
from weavejax.planner.api import search
from weavejax.planner.candidates import significant
from weavejax.planner.memory import replica_memory, widest_interfaces
from weavejax.planner.report import InfeasiblePlanError
from weavejax.planner.round_trip import round_trip_time
from weavejax.planner.transfer import move_time_s
from weavejax.schedule import build_schedule


def every_template(config, limits):
    """(K, template) of the design, spelled out: sub-blocks, cuts and offsets."""
    kinds = config.layer_kinds
    period = next(p for p in range(1, len(kinds) + 1) if kinds[p:] == kinds[: len(kinds) - p])
    if limits.min_groups == 1:
        yield 1, Template(layers=period)
    for groups in range(max(2, limits.min_groups), limits.max_groups + 1):
        for layers in (n for n in range(1, period + 1) if period % n == 0):
            for ring in itertools.combinations(range(4 * layers), groups):
                if ring[0] == 0 or limits.offsets:
                    cuts = tuple(place - ring[0] for place in ring[1:])
                    yield groups, Template(layers=layers, cuts=cuts, offset=ring[0])


def every_group(config, cluster, limits, batch, microbatches):
    """Every device group that may own stages at one batch, in the stable order."""
    moe = any(kind.ffn == "moe" for kind in config.layer_kinds)
    for spec, count in cluster.devices:
        for ways in limits.tensor_parallel:
            experts = sorted({1, ways} if moe and limits.expert_parallel else {1})
            rows = sorted({1, ways} if limits.attention_data_parallel else {1})
            for expert_ways, row_ways in itertools.product(experts, rows):
                for replicas in range(1, limits.max_replicas + 1):
                    fits = ways * replicas <= min(count, limits.max_devices)
                    if ways > spec.devices_per_node or not fits:
                        continue
                    if batch % (replicas * microbatches * row_ways) == 0:
                        yield DeviceGroup(
                            device=spec.name,
                            tensor_parallel=ways,
                            expert_parallel=expert_ways,
                            attention_data_parallel=row_ways,
                            replicas=replicas,
                            resident_batch=batch // replicas,
                        )


def brute_force(config, cluster, context, slo_s, limits, profile):
    """Try every candidate, one at a time; returns (key, plan) of the best, and their number."""
    best, tried = None, 0
    for index, (groups, template) in enumerate(every_template(config, limits)):
        laid = LaidTemplate(template, groups, config, cluster, context, profile)
        for micro in range(1, limits.max_microbatches + 1):
            for batch in limits.batches:
                points = list(every_group(config, cluster, limits, batch, micro))
                for choice in itertools.product(range(len(points)), repeat=groups):
                    tried += 1
                    plan = laid.plan([points[i] for i in choice], micro)
                    if plan.num_devices > limits.max_devices or any(
                        sum(g.num_devices for g in plan.groups if g.device == spec.name) > count
                        for spec, count in cluster.devices
                    ):
                        continue
                    if any(laid.short_bytes(i, g, micro) > 0 for i, g in enumerate(plan.groups)):
                        continue
                    compute, move = laid.times_s(plan)
                    time_s = round_trip_time(compute, move, laid.owners, micro)
                    if time_s > slo_s:
                        continue
                    rate = sum(
                        cluster.device(g.device).usd_per_hour * g.tensor_parallel / g.resident_batch
                        for g in plan.groups
                    )
                    cost, work = significant(time_s * rate / 3600), significant(sum(compute))
                    key = (cost, plan.num_devices, batch, work, groups, index, micro, choice)
                    if best is None or key < best[0]:
                        best = (key, plan)
    return best, tried


class LaidTemplate:
    """One template over one model: what a candidate's groups add to it."""

    def __init__(self, template, groups, config, cluster, context, profile):
        self.template, self.config, self.cluster = template, config, cluster
        self.context, self.profile = context, profile
        self.ref = ModelRef(name=config.name, digest=config.digest, config={})
        one = DeviceGroup(device=cluster.names[0], resident_batch=1)
        self.schedule = build_schedule(self.plan([one] * groups, 1), config)
        self.owners = self.schedule.owners
        self.known = {}

    def plan(self, groups, microbatches):
        return Plan(
            model=self.ref,
            workload=Workload(context=self.context),
            template=self.template,
            groups=tuple(groups),
            microbatches=microbatches,
            cluster=self.cluster,
        )

    def short_bytes(self, index, group, microbatches):
        key = ("memory", index, group, microbatches)
        if key not in self.known:
            stages = zip(self.schedule.operators, self.owners, strict=True)
            self.known[key] = replica_memory(
                [op for ops, owner in stages if owner == index for op in ops],
                group,
                microbatches=microbatches,
                context=self.context,
                kv_heads=self.config.num_kv_heads,
                interface_bytes_per_row=widest_interfaces(
                    self.schedule.interfaces, self.owners, index
                ),
                device_memory_bytes=self.cluster.device(group.device).memory_bytes,
            ).short_bytes
        return self.known[key]

    def times_s(self, plan):
        compute, move = [], []
        for i, owner in enumerate(self.owners):
            group = plan.groups[owner]
            key = ("compute", i, group, plan.microbatches)
            if key not in self.known:
                rows = [group.resident_batch // plan.microbatches]
                programs = merge_occurrences(
                    self.schedule.occurrences, self.template.num_operators, plan.microbatches
                )
                begins = i in {part[0].index for part in programs}
                self.known[key] = begins * self.profile.stage_overhead_s + sum(
                    float(self.profile.operator_times_s(op, group, rows, self.context)[0][0])
                    for op in self.schedule.operators[i]
                )
            compute.append(self.known[key])
            target = self.owners[(i + 1) % len(self.owners)]
            key = ("move", i, group, plan.groups[target], plan.microbatches)
            if key not in self.known:
                tensors = self.schedule.interfaces[i]
                size = sum(4 if t.name == "ids" else 2 * math.prod(t.shape) for t in tensors)
                self.known[key] = move_time_s(plan, self.cluster, owner, target, size)
            move.append(self.known[key])
        return compute, move


MOST_CANDIDATES = 8000
"""Of 300 random spaces five would take two thirds of the time."""


def candidates(config, cluster, limits):
    """How many candidates there are to try."""
    templates = [groups for groups, _ in every_template(config, limits)]
    return sum(
        len(list(every_group(config, cluster, limits, batch, micro))) ** groups
        for groups in templates
        for micro in range(1, limits.max_microbatches + 1)
        for batch in limits.batches
    )


def within_reach(config, cluster, limits):
    """The same limits, or smaller ones while there are too many candidates."""
    smaller = [
        dict(max_microbatches=1),
        dict(max_replicas=min(2, limits.max_replicas)),
        dict(batches=limits.batches[:1]),
        dict(max_groups=2),
        dict(offsets=False),
    ]
    while candidates(config, cluster, limits) > MOST_CANDIDATES and smaller:
        limits = dataclasses.replace(limits, **smaller.pop(0))
    return limits


def check_space(seed):
    config, cluster, context, slo_s, limits, profile = problem(seed)
    limits = within_reach(config, cluster, limits)
    best, tried = brute_force(config, cluster, context, slo_s, limits, profile)
    for pareto, bound in itertools.product((True, False), repeat=2):
        arguments = dict(limits=limits, profile=profile, pareto=pareto, bound=bound)
        if best is None:
            with pytest.raises(InfeasiblePlanError):
                search(config, cluster, context, slo_s, **arguments)
            continue
        report = search(config, cluster, context, slo_s, **arguments)
        found = report.best
        assert report.proven
        assert report.counts.candidates == report.counts.accounted == tried
        assert found.groups == best[1].groups, (seed, pareto, bound)
        assert found.template == best[1].template, (seed, pareto, bound)
        assert found.microbatches == best[1].microbatches, (seed, pareto, bound)
        cost = found.prediction.usd_per_million_tokens
        assert cost / 1e6 == pytest.approx(best[0][0], rel=1e-8)
        if not bound:
            assert report.counts.bound_by_cost == report.counts.bound_by_slo == 0
        if not pareto:
            assert report.counts.dominated == 0
    return best is not None, tried


@pytest.mark.parametrize(
    "chunk", [0, *(pytest.param(c, marks=pytest.mark.slow) for c in range(1, 10))]
)
def test_equals_brute_force_on_300_spaces(chunk):
    outcomes = [check_space(1000 + 30 * chunk + i) for i in range(30)]
    feasible = sum(found for found, _ in outcomes)
    assert 0 < feasible
    assert sum(tried for _, tried in outcomes) > 1000
