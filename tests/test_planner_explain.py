"""Comparisons, what turns the verdict, the printed explanation and the ablation."""

import dataclasses

import pytest
from planner_fakes import FakeProfile, device, model
from rich.console import Console

from weavejax.meshes.cluster import Cluster
from weavejax.models import preset_config
from weavejax.plan import DeviceGroup, Plan, PlanError, Template
from weavejax.planner.ablation import (
    PAPER_TABLE3,
    TABLE3_LIMITS,
    ablation,
    fitting_candidates,
    smaller_grids,
)
from weavejax.planner.api import plan, search
from weavejax.planner.comparison import (
    Comparison,
    GainCap,
    Rival,
    compare,
    left_out,
    plan_limits,
)
from weavejax.planner.explain import cap_lines, explain, flip_lines, verdict
from weavejax.planner.limits import SearchLimits
from weavejax.planner.sensitivity import Flip, flips

SMALL = SearchLimits(max_devices=16, max_replicas=2, max_batch=256, max_groups=2)


def shown(renderable, width=160):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))
    console.print(renderable)
    return console.export_text()


@pytest.fixture(scope="module")
def gemma():
    """A homogeneous plan: colocation wins, and the best split plan stands beside it."""
    found = plan("gemma-3-27b", "h100-sxm:16", 32_768, 0.06, limits=SMALL)
    return found, compare(found, limits=SMALL)


def test_the_cap_of_theorem_31_stands_beside_homogeneous_comparisons(gemma):
    _, comparison = gemma
    assert comparison.cap.devices == 8
    assert comparison.cap.cap == pytest.approx(1.10, abs=0.005)
    assert comparison.cap.gain < comparison.cap.cap and comparison.cap.beyond == ()
    narrow = dataclasses.replace(SMALL, tensor_parallel=(1, 2))
    found = plan("gemma-3-27b", "h100-sxm:16", 32_768, 0.06, limits=narrow)
    cap = compare(found, limits=narrow).cap
    assert (cap.devices, round(cap.cap, 1)) == (2, 1.6)


def test_do_not_disaggregate_is_said_with_by_how_much(gemma):
    found, comparison = gemma
    assert len(found.groups) == 1 and not comparison.disaggregate
    assert comparison.colocated.plan == found.replace(policy="colocated")
    more = comparison.split.usd_per_million_tokens / comparison.colocated.usd_per_million_tokens
    text = shown(explain(found, comparison))
    assert "Do not disaggregate: one group at $" in text
    assert f"costs {more - 1:.1%} more" in text
    assert "M/(M - M_weights) = 1.10" in text
    for name in ("colocated", "afd", "cad", "two or more groups", "reserve", "measured"):
        assert name in text
    assert len(comparison.split.plan.groups) >= 2


def test_cuts_are_drawn_over_a_block():
    config = preset_config("gemma-3-27b")
    groups = (
        DeviceGroup(device="h100-sxm", tensor_parallel=8, resident_batch=8),
        DeviceGroup(device="l40s", resident_batch=8),
    )
    found = search(
        config, "h100-sxm:8", 1024, 1.0, limits=SearchLimits(max_batch=8), policy="colocated"
    ).best
    cad = found.replace(
        template=Template(cuts=(1,), offset=1), groups=groups, cluster=None, prediction=None
    )
    lines = [line.split() for line in shown(explain(cad)).splitlines() if "attn_core" in line]
    assert lines[0] == "6 sliding/dense attn_in:1 | attn_core:0 | attn_out:1 ffn:1".split()
    assert sum("|" in line for line in lines[:6]) == 6


def test_rivals_stand_under_the_limits_of_the_plan(gemma):
    found, comparison = gemma
    assert comparison == compare(found)  # the limits that the plan carries
    assert comparison.limits == SMALL == plan_limits(found)
    own = "max_devices=16, max_groups=2, max_replicas=2, max_batch=256"
    assert f"Under the plan's search limits: {own}" in shown(explain(found, comparison))
    other = dataclasses.replace(comparison, limits=SearchLimits())
    text = shown(explain(found, other))
    assert "Under other search limits than the plan's: the default ones" in text
    by_hand = found.replace(search_limits=None)
    assert plan_limits(by_hand) == SearchLimits()
    assert "which are not said to be the plan's: max_dev" in shown(explain(by_hand, comparison))
    with pytest.raises(PlanError, match="search_limits of the plan: search limits have no a"):
        plan_limits(found.replace(search_limits={"a": 1}))


def rival(name, cost, found=None):
    prediction = dataclasses.replace(found.prediction, usd_per_million_tokens=cost)
    return Rival(name=name, plan=found.replace(prediction=prediction))


def test_every_verdict(gemma):
    found, comparison = gemma
    nothing = Rival(name="none", plan=None, reason="memory binds")
    colocated, split = rival("colocated", 2.0, found), rival("split", 1.5, comparison.split.plan)

    def of(one, two):
        return verdict(Comparison(rivals=(one, nothing, nothing), split=two, cap=None))

    assert "cost 25.0% less than one group at $2.0000" in of(colocated, split)
    assert of(nothing, split) == "Disaggregate: no colocated plan fits (memory binds)."
    assert of(colocated, nothing).startswith("Do not disaggregate: no plan of two or more groups")
    assert "colocated or disaggregated" in of(nothing, nothing)


def test_a_gain_above_the_cap_is_explained(gemma):
    found, comparison = gemma
    config = preset_config("gemma-3-27b")
    wide = dataclasses.replace(found.groups[0], tensor_parallel=32)
    reasons = left_out(found.replace(groups=(wide,)), comparison.split.plan, config)
    assert any("keeps 2 copies of the cache" in reason for reason in reasons)
    cap = GainCap(cap=1.1, devices=8, gain=1.3, beyond=reasons)
    lines = cap_lines(dataclasses.replace(comparison, cap=cap))
    assert "The gain above the cap comes from what the theorem leaves out:" in lines
    assert len(lines) == 2 + len(reasons)


def test_flips_turn_the_verdict():
    limits = SearchLimits(tensor_parallel=(4, 8), max_groups=2, max_microbatches=3)
    cluster = Cluster.parse("a100-sxm:16,h100-sxm:16")
    found = plan("gemma-3-27b", cluster, 32_768, 0.06, limits=limits)
    assert len(found.groups) == 2
    by_axis = {flip.axis: flip for flip in flips(found, limits=limits)}
    assert set(by_axis) == {"context", "price", "network", "tensor-parallel limit"}
    assert by_axis["price"].change == "a100-sxm at $3.48 an hour instead of $1.74"
    dear = cluster.with_prices({"a100-sxm": 3.48})
    assert len(plan("gemma-3-27b", dear, 32_768, 0.06, limits=limits).groups) == 1
    for flip in by_axis.values():
        assert 0 < flip.tried <= 12
    lines = flip_lines([by_axis["price"], Flip(axis="network", change=None, tried=4)])
    assert lines[0] == f"price: the verdict turns with {by_axis['price'].change}."
    assert lines[1] == "network: none of 4 changes tried turns the verdict."


def test_ablation_rows_agree_on_the_plan():
    import numpy as np

    rng = np.random.default_rng(5)
    cluster = Cluster(devices=((device("one", rng), 4),))
    limits = SearchLimits(
        batches=(2, 3, 4, 6, 8, 12), max_replicas=3, max_microbatches=3, max_groups=2
    )
    arguments = (model(rng), cluster, 16, 1.0)
    rows = ablation(*arguments, limits=limits, profile=FakeProfile(1))
    assert [row.name for row in rows] == ["full", "no pareto", "no bound", "neither"]
    assert {row.grid for row in rows} == {"whole"}
    assert len({row.usd_per_million_tokens for row in rows}) == 1
    full, no_pareto, no_bound, neither = rows
    assert full.simulated <= no_pareto.simulated <= neither.simulated
    assert full.simulated < no_bound.simulated <= neither.simulated
    fitting = fitting_candidates(*arguments, limits, FakeProfile(1))
    assert neither.simulated <= fitting <= neither.candidates
    short = ablation(*arguments, limits=limits, profile=FakeProfile(1), max_simulations=fitting - 1)
    assert [row.name for row in short] == ["full", "no pareto", "full", "no bound", "neither"]
    assert short[2].grid == short[3].grid == short[4].grid != "whole"
    assert len({row.usd_per_million_tokens for row in short[2:]}) == 1


def test_table3_setting_is_at_least_the_papers():
    for cluster, name in (("h100-sxm:32", "h100"), ("a100-sxm:32,h100-sxm:32", "a100+h100")):
        limits = dataclasses.replace(TABLE3_LIMITS, max_batch=8192)
        report = search("gemma-3-27b", cluster, 32_768, 0.06, limits=limits)
        assert report.proven
        assert report.counts.candidates >= PAPER_TABLE3[name]["neither"][0]
        assert report.counts.simulated < 100_000


def test_smaller_grids_only_shrink():
    grids = [limits for _, limits in smaller_grids(SearchLimits())]
    for larger, smaller in zip(grids, grids[1:], strict=False):
        assert set(smaller.batches) <= set(larger.batches)
        assert smaller.max_groups <= larger.max_groups
        assert smaller.max_replicas <= larger.max_replicas


def test_comparisons_need_a_target(gemma):
    found, _ = gemma
    workload = dataclasses.replace(found.workload, tpot_slo_s=None)
    with pytest.raises(ValueError, match=r"needs the plan's workload\.tpot_slo_s, got None"):
        compare(Plan.from_dict(found.replace(workload=workload).to_dict()))
    with pytest.raises(ValueError, match=r"needs the plan's workload\.tpot_slo_s, got None"):
        flips(found.replace(workload=workload))
