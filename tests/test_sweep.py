"""Sweeps, searches and variants change what they name and nothing else."""

from __future__ import annotations

import pytest
from workbench_cases import CLUSTER, MODEL, SMALL, case

import weavejax as wj
from weavejax.meshes.cluster import Cluster
from weavejax.workbench import searches as searches_module
from weavejax.workbench.cases import portable, record, solve
from weavejax.workbench.searches import Searches
from weavejax.workbench.sweep import AXES, with_device_ratio
from weavejax.workbench.variant import ProfileVariant


def test_sweep_changes_one_thing() -> None:
    table = wj.sweep(
        MODEL, "h100-sxm:4,l40s:4", 4096, 0.02, "usd_per_hour", [1.0, 2.0], ["colocated"],
        device="h100-sxm", limits=wj.SearchLimits(tensor_parallel=(1,), batches=(16,)), jobs=1,
    )  # fmt: skip
    assert table.column("axis_value") == [1.0, 2.0] and set(table.column("axis")) == {
        "usd_per_hour"
    }
    cheap, dear = table.column("usd_per_million_tokens")
    assert cheap <= dear <= 2 * cheap


@pytest.mark.parametrize("axis", AXES)
def test_every_axis_changes_the_case(axis: str) -> None:
    mixed = case(cluster=Cluster.parse("h100-sxm:4,l40s:4"))
    value = {"context": 1234, "device_ratio": 0.25}.get(axis, 0.5)
    changed = AXES[axis].change(mixed, value, "l40s")
    assert changed != mixed
    if axis == "network_latency_s":
        assert {spec.inter_node.latency_s for spec, _ in changed.cluster.devices} == {0.5}
    if axis == "usd_per_hour":
        assert changed.cluster.device("l40s").usd_per_hour == 0.5


def test_device_ratio_keeps_the_number_of_devices() -> None:
    three = Cluster.parse("h100-sxm:8,a100-sxm:4,l40s:4")
    for share in (0.0, 0.1, 0.25, 0.5, 1.0):
        mixed = with_device_ratio(three, "l40s", share)
        assert mixed.device_count == 16
        assert ("l40s" in mixed.names) == (share > 0)
        if share:
            assert mixed.count("l40s") == round(16 * share)
    with pytest.raises(ValueError, match="share in .0, 1., got 3 type.s. and 1.5"):
        with_device_ratio(three, "l40s", 1.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("price", [1.0]), "an axis is one of context, tpot_slo_s"),
        (("usd_per_hour", [1.0]), "name it as device=..."),
        (("context", []), "at least one value"),
    ],
)
def test_what_cannot_be_swept_is_refused(arguments, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        wj.sweep(MODEL, CLUSTER, 4096, 0.02, *arguments, limits=SMALL, jobs=1)


@pytest.mark.slow
def test_processes_give_what_one_process_gives() -> None:
    @wj.register_policy("compare-test-halves")
    def halves(block, groups):  # type: ignore[no-untyped-def]
        return [wj.Template(layers=1, cuts=(2,))] if groups == 2 else []

    asked = [
        case(context=context, policy=policy, tpot_slo_s=slo_s)
        for context in (2048, 4096)
        for policy in ("colocated", "compare-test-halves")
        for slo_s in (0.02, 1e-5)
    ]
    seen: list[tuple[int, int]] = []
    with Searches(2) as pool:
        many = pool.run(asked, progress=lambda what, done, total: seen.append((done, total)))
        again = pool.run(asked)
    one = Searches(1).run(asked)
    assert [o.plan for o in many] == [o.plan for o in one] == [o.plan for o in again]
    assert [o.reason for o in many] == [o.reason for o in one]
    assert seen == [(i, 8) for i in range(1, 9)]
    assert {o.plan.policy for o in many if o.plan} == {"colocated", "compare-test-halves"}


def test_a_case_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(searches_module, "solve", lambda c: (calls.append(c), solve(c))[1])
    pool = Searches(1)
    first = pool.run([case(), case()])
    assert first == pool.run([case(), case()]) and len(calls) == 1
    with pytest.raises(ValueError, match="jobs must be at least 1, got 0"):
        Searches(0)


def test_a_policy_travels_as_its_templates() -> None:
    @wj.register_policy("compare-test-travels")
    def travels(block, groups):  # type: ignore[no-untyped-def]
        return [wj.Template(layers=1, cuts=(1,))] if groups == 2 else []

    packed = portable(case(policy="compare-test-travels"))
    assert packed.templates == ((1, ()), (2, (wj.Template(layers=1, cuts=(1,)),)))
    assert portable(packed) is packed and portable(case()).templates is None
    outcome = solve(packed)
    assert outcome.plan is not None and outcome.plan.policy == "compare-test-travels"
    assert outcome.plan.template.cuts == (1,)
    missed = solve(portable(case(policy="compare-test-travels", tpot_slo_s=1e-6)))
    assert missed.constraint == "latency" and "#" not in missed.reason
    assert record(packed, missed)["status"] == "latency"


def test_a_variant_adds_its_cost_to_every_stage() -> None:
    plain = solve(case(policy="afd")).plan
    assert plain is not None and plain.prediction is not None
    dear = wj.evaluate(plain, ProfileVariant(stage_overhead_s=1e-4))
    for before, after in zip(plain.prediction.stages, dear.stages, strict=True):
        assert after.time_s == pytest.approx(before.time_s + 1e-4)
    assert ProfileVariant(stage_overhead_s=1e-4).hash != ProfileVariant().hash
    assert ProfileVariant().name == "nvidia-measured"


def test_a_variant_times_windows_of_another_length() -> None:
    plan = solve(case(policy="colocated")).plan
    assert plan is not None and plan.prediction is not None
    short = wj.evaluate(plan, ProfileVariant(timed_window=128))
    same = wj.evaluate(plan, ProfileVariant(timed_window=1024))
    assert same.round_trip_time_s == plan.prediction.round_trip_time_s
    assert short.round_trip_time_s < same.round_trip_time_s
