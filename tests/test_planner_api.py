"""Plans, predictions, policies and errors through the public functions."""

import dataclasses
import itertools
import json

import numpy as np
import pytest
from planner_fakes import FakeProfile, device, model, problem

from weavejax.meshes.cluster import Cluster
from weavejax.meshes.devices import MissingPriceError
from weavejax.models import preset_config
from weavejax.plan import DeviceGroup, ModelRef, Plan, ProfileRef, Template, Workload
from weavejax.planner import api
from weavejax.planner.api import plan, search
from weavejax.planner.limits import SearchLimits, batch_grid
from weavejax.planner.predict import Predictor, evaluate, simulate
from weavejax.planner.report import InfeasiblePlanError

FEASIBLE = [seed for seed in range(2000, 2060) if problem(seed)[4].max_groups > 1][:30]


def best_cost(seed, policy, **changes):
    config, cluster, context, slo_s, limits, profile = problem(seed)
    limits = dataclasses.replace(limits, **changes)
    try:
        report = search(
            config, cluster, context, slo_s, policy=policy, limits=limits, profile=profile
        )
    except InfeasiblePlanError:
        return np.inf
    assert report.best.policy == policy
    return report.best.prediction.usd_per_million_tokens


@pytest.mark.parametrize("offsets", [True, False])
def test_other_policies_are_never_better_than_weave(offsets):
    finite = 0
    for seed in FEASIBLE:
        weave = best_cost(seed, "weave", offsets=offsets)
        for policy in ("colocated", "afd", "cad"):
            other = best_cost(seed, policy, offsets=offsets)
            assert other >= weave * (1 - 1e-9), (seed, policy)
            finite += np.isfinite(other)
    assert finite > 10


def test_wider_limits_never_cost_more():
    for seed in FEASIBLE[:15]:
        config, cluster, context, slo_s, limits, profile = problem(seed)
        narrow = best_cost(seed, "weave", offsets=False)
        assert best_cost(seed, "weave", offsets=True) <= narrow * (1 + 1e-9)
        more = best_cost(seed, "weave", offsets=False, max_replicas=limits.max_replicas + 1)
        assert more <= narrow * (1 + 1e-9)


def test_prediction_is_the_same_from_json_alone():
    config = preset_config("qwen3-next-80b-a3b")
    limits = SearchLimits(max_devices=8, max_replicas=2, max_batch=64, max_groups=2)
    found = plan(config, "h100-sxm:8,l40s:8", 8192, 0.2, limits=limits)
    again = Plan.from_dict(json.loads(found.dumps()))
    assert again == found
    assert evaluate(again) == found.prediction
    changed = dataclasses.replace(found.profile, hash="other")
    with pytest.raises(ValueError, match=r"profile 'nvidia-measured' of hash other, the one found"):
        evaluate(found.replace(profile=changed))
    with pytest.raises(ValueError, match="the plan names no profile"):
        evaluate(found.replace(profile=None))


def a_plan(groups=2, template=None, **changes):
    rng = np.random.default_rng(1)
    config = dataclasses.replace(model(rng), tie_embeddings=True)
    cluster = Cluster(devices=((device("one", rng), 8), (device("two", rng), 8)))
    fields = dict(
        model=ModelRef(name=config.name, digest=config.digest, config=config.to_dict()),
        workload=Workload(context=16),
        template=template or Template(cuts=(3,)),
        groups=(
            DeviceGroup(device="one", tensor_parallel=2, resident_batch=12),
            DeviceGroup(device="two", replicas=2, resident_batch=6),
        )[:groups],
        microbatches=3,
        cluster=cluster,
    )
    return Plan(**{**fields, **changes}), config


def test_prediction_adds_up():
    made, config = a_plan()
    profile = FakeProfile(3)
    prediction = evaluate(made, profile)
    time_s = prediction.round_trip_time_s
    work = [3 * sum(s.time_s for s in prediction.stages if s.group == g) for g in (0, 1)]
    busy = [group.busy_fraction for group in prediction.groups]
    assert busy == pytest.approx([w / time_s for w in work])
    prices = [2 * made.cluster.device(name).usd_per_hour for name in ("one", "two")]
    assert prediction.occupancy == pytest.approx(np.average(busy, weights=prices))
    per_token = time_s * sum(prices) / 3600 / made.batch
    assert prediction.usd_per_million_tokens == pytest.approx(1e6 * per_token)
    # attention | feed-forward: h goes over, x comes back, ids return (4 bytes)
    layers, hidden = config.num_layers, config.hidden_size
    assert prediction.internode_bytes_per_token == 2 * hidden * (2 * layers - 1) + 4
    assert len(prediction.moves) == 2 * layers
    assert max(move.time_s for move in prediction.moves) < time_s
    for stage in prediction.stages:
        assert 0 <= stage.measured_fraction <= 1
        assert (stage.source == "measured") == (stage.measured_fraction == pytest.approx(1))
    assert simulate(made, profile).round_trip_time_s == pytest.approx(time_s, rel=1e-12)


def test_moves_inside_a_node_do_not_count_as_traffic():
    made, _ = a_plan()
    together = made.replace(
        groups=tuple(dataclasses.replace(g, device="one", tensor_parallel=1) for g in made.groups)
    )
    spec = dataclasses.replace(made.cluster.device("one"), devices_per_node=3)
    together = together.replace(cluster=Cluster(devices=((spec, 8),)))
    assert evaluate(together, FakeProfile(3)).internode_bytes_per_token == 0
    assert evaluate(made, FakeProfile(3)).internode_bytes_per_token > 0


def test_memory_by_kind():
    made, config = a_plan()
    predictor = Predictor(made, FakeProfile(0))
    attention, ffn = predictor.memory()
    assert ffn.cache_bytes == 0 < attention.cache_bytes
    layers = config.num_layers
    positions = [min(16, 8) if k.attention == "sliding" else 16 for k in config.layer_kinds]
    assert attention.cache_bytes == sum(2 * 2 * 2 * 8 * p for p in positions) * 12
    whole, _ = a_plan(groups=1, template=Template())
    alone = Predictor(whole, FakeProfile(0)).memory()[0]
    # tied embeddings: both ends are on one group here, so the table is stored once
    table = 2 * config.vocab_size * config.hidden_size
    owned = Predictor(made.replace(groups=made.groups[:1] * 2), FakeProfile(0)).memory()
    assert sum(m.weight_bytes for m in owned) == alone.weight_bytes + table
    assert alone.needed_bytes == (
        alone.weight_bytes + alone.cache_bytes + alone.buffer_bytes + alone.reserve_bytes
    )
    assert alone.reserve_bytes == alone.memory_bytes // 10
    assert layers == len(positions)


def test_cost_needs_prices_and_prediction_does_not():
    made, config = a_plan()
    unpriced = Cluster(
        devices=tuple(
            (dataclasses.replace(spec, usd_per_hour=None), n) for spec, n in made.cluster.devices
        )
    )
    prediction = evaluate(made.replace(cluster=unpriced), FakeProfile(3))
    assert prediction.usd_per_million_tokens is None
    assert 0 < prediction.occupancy <= 1
    with pytest.raises(MissingPriceError, match="needs a price for 'one'"):
        search(config, unpriced, 16, 1.0, profile=FakeProfile(3))


def infeasible(**changes):
    rng = np.random.default_rng(4)
    config = model(rng)
    memory = changes.pop("memory_bytes", 1e9)
    cluster = Cluster(devices=((device("one", rng, memory), changes.pop("count", 4)),))
    arguments = {"slo_s": 1.0, "policy": "weave", **changes}
    limits = arguments.pop("limits", SearchLimits(batches=(4, 8), max_microbatches=2))
    with pytest.raises(InfeasiblePlanError) as caught:
        search(
            config,
            cluster,
            16,
            arguments["slo_s"],
            policy=arguments["policy"],
            limits=limits,
            profile=FakeProfile(4),
        )
    return caught.value, (config, cluster, limits)


def test_infeasible_latency_names_the_nearest_target():
    error, (config, cluster, limits) = infeasible(slo_s=1e-6)
    assert error.constraint == "latency"
    nearest_s = error.nearest_slo_s
    assert error.short_s == pytest.approx(nearest_s - 1e-6)
    assert f"the nearest feasible target is {nearest_s * 1e3:.3f} ms" in str(error)
    profile = FakeProfile(4)
    found = plan(config, cluster, 16, nearest_s * (1 + 1e-9), limits=limits, profile=profile)
    assert found.prediction.round_trip_time_s == pytest.approx(nearest_s)
    with pytest.raises(InfeasiblePlanError, match="latency binds"):
        plan(config, cluster, 16, nearest_s * (1 - 1e-9), limits=limits, profile=profile)


def test_infeasible_memory_says_how_many_bytes():
    error, (config, cluster, limits) = infeasible(memory_bytes=1e4)
    assert error.constraint == "memory"
    assert f"{error.short_bytes:,} bytes" in str(error)
    # Just enough more on every device makes it fit, interface buffers aside.
    spec, count = cluster.devices[0]
    for extra, fits in ((2.0, True), (0.1, False)):
        bigger = dataclasses.replace(spec, memory_bytes=1e4 + extra * error.short_bytes / 0.9)
        arguments = dict(limits=limits, profile=FakeProfile(4))
        if fits:
            assert plan(config, Cluster(devices=((bigger, count),)), 16, 1.0, **arguments)
        else:
            with pytest.raises(InfeasiblePlanError, match="memory binds"):
                plan(config, Cluster(devices=((bigger, count),)), 16, 1.0, **arguments)


def test_infeasible_devices_templates_and_grid():
    two = SearchLimits(batches=(4,), min_groups=2, max_groups=2)
    error, _ = infeasible(count=1, limits=two)
    assert error.constraint == "devices"
    assert "max_devices=32 and the inventory one:1" in str(error)
    error, _ = infeasible(policy="cad", limits=dataclasses.replace(two, offsets=False))
    assert error.constraint == "templates"
    assert str(error) == (
        "policy 'cad' offers 1 template(s) for 2 to 2 groups, and the limits leave out all of "
        "them: for 2 groups one starts at offset 1: allow offsets (on the command line: without "
        "--no-offsets)"
    )
    error, _ = infeasible(policy="afd", limits=dataclasses.replace(two, sub_blocks=(2,)))
    assert "one spans 1 layers: let sub_blocks=(2,) hold 1" in str(error)
    error, _ = infeasible(policy="colocated", limits=two)
    assert error.constraint == "templates"
    assert "'colocated' offers no template for 2 to 2 groups: it returned none" in str(error)
    error, _ = infeasible(limits=SearchLimits(batches=(4,), tensor_parallel=(3,)))
    assert error.constraint == "grid"
    assert "tensor_parallel must be one of (3,)" in str(error)


def test_interrupted_search_keeps_the_best_and_says_so(monkeypatch):
    config, cluster, context, slo_s, limits, profile = problem(1056)
    arguments = dict(limits=limits, profile=profile, bound=False)
    whole = search(config, cluster, context, 1.0, **arguments)
    visits = itertools.count()
    visit = api.Search._visit

    def interrupted(self, *arguments):
        if next(visits) == 5:
            raise KeyboardInterrupt
        visit(self, *arguments)

    monkeypatch.setattr(api.Search, "_visit", interrupted)
    part = search(config, cluster, context, 1.0, **arguments)
    assert whole.proven and not part.proven
    assert part.counts.simulated < whole.counts.simulated
    cost = part.best.prediction.usd_per_million_tokens
    assert cost >= whole.best.prediction.usd_per_million_tokens
    visits = itertools.count(5)
    with pytest.raises(KeyboardInterrupt, match="before its plan was proven optimal"):
        plan(config, cluster, context, 1.0, limits=limits, profile=profile)


def test_report_says_how_it_went():
    config, cluster, context, _, limits, profile = problem(1056)
    seen = []
    report = search(
        config,
        cluster,
        context,
        1.0,
        limits={"weave": limits},
        profile=profile,
        progress=lambda *now: seen.append(now),
    )
    costs = [p.prediction.usd_per_million_tokens for p in (report.best, *report.alternatives)]
    assert costs == sorted(costs)
    assert report.limits["max_groups"] == limits.max_groups
    assert report.best.profile == ProfileRef(name="fake", hash="0" * 12)
    assert report.seconds > 0 <= report.compile_s
    with pytest.raises(ValueError, match="need an entry for 'afd', got weave"):
        search(config, cluster, 4, 1.0, policy="afd", limits={"weave": limits}, profile=profile)


def test_limits_check_themselves():
    assert batch_grid(12) == (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)
    with pytest.raises(ValueError, match="max_groups must be a whole number >= 1, got 0"):
        SearchLimits(max_groups=0)
    with pytest.raises(ValueError, match="max_devices must be a whole number >= 1, got 8.0"):
        SearchLimits(max_devices=8.0)
    with pytest.raises(
        ValueError, match="tensor_parallel needs whole numbers of at least 1, got 4"
    ):
        SearchLimits(tensor_parallel=4)
    with pytest.raises(ValueError, match="min_groups must not exceed max_groups=2, got 3"):
        SearchLimits(max_groups=2, min_groups=3)
    with pytest.raises(ValueError, match=r"batches needs whole numbers of at least 1, got \(0,\)"):
        SearchLimits(batches=(0,))


@pytest.mark.parametrize(
    "limits",
    [
        SearchLimits(),
        SearchLimits(batches=(4, 8), sub_blocks=(1, 2), offsets=False),
        SearchLimits(max_batch=np.int64(64), tensor_parallel=np.array([2, 1]), batches=[]),
    ],
)
def test_limits_survive_json(limits):
    data = json.loads(json.dumps(limits.to_dict()))
    assert SearchLimits.from_dict(data) == limits
    assert ("batches" in data) == (limits.batches != batch_grid(limits.max_batch))
    with pytest.raises(ValueError, match="search limits have no max_deuces; they have"):
        SearchLimits.from_dict({"max_deuces": 2})


def test_a_plan_carries_the_limits_it_was_found_under():
    config, cluster, context, _, limits, profile = problem(1056)
    report = search(config, cluster, np.int64(context), 1.0, limits=limits, profile=profile)
    for found in (report.best, *report.alternatives):
        again = Plan.from_dict(json.loads(found.dumps()))
        assert SearchLimits.from_dict(again.search_limits) == limits
        assert again == found and again.dumps() == found.dumps()


def test_a_target_that_looks_like_milliseconds_is_warned_of(recwarn):
    config, cluster, context, _, limits, profile = problem(1056)
    search(config, cluster, context, api.LONG_SLO_S, limits=limits, profile=profile)
    assert not recwarn.list
    with pytest.warns(
        UserWarning, match=r"in seconds a token, got 60 s \(60,000 ms\); 60 ms is 0.060"
    ):
        search(config, cluster, context, 60, limits=limits, profile=profile)


def test_a_policy_is_named_not_given():
    def mine(block, groups):
        return []

    for given in (mine, [mine], None, 3):
        with pytest.raises(
            TypeError, match="must be the name of a registered policy, got .* first"
        ):
            plan("gemma-3-4b", "h100-sxm:1", 64, 1.0, policy=given)
