"""Regions and break-even prices agree with the planner they ask."""

from __future__ import annotations

import math

import pytest
from workbench_cases import CLUSTER, MODEL, SMALL

import weavejax as wj
from weavejax.meshes.cluster import Cluster
from weavejax.workbench.whatif import price_break_even, price_curve, region


def test_region_names_the_winner() -> None:
    table = region(MODEL, CLUSTER, [4096], [0.02, 1e-5], limits=SMALL, jobs=1)
    wide, tight = table
    assert tight["verdict"] == "no plan" and tight["gain_of_splitting"] is None
    assert wide["gain_of_splitting"] == wide["colocated_usd"] / wide["split_usd"]
    assert wide["verdict"] == ("split" if wide["gain_of_splitting"] > 1 else "colocated")


def test_at_the_break_even_price_both_cost_the_same() -> None:
    mixed = "h100-sxm:2,a100-sxm:2"
    limits = wj.SearchLimits(max_devices=2, max_groups=1, max_replicas=1, batches=(16, 64))
    even = price_break_even(MODEL, mixed, 4096, 0.05, "a100-sxm", limits=limits)
    price = even.usd_per_hour
    assert price is not None and math.isfinite(price)
    assert f"pays below ${price:.4f} an hour" in even.describe()

    def cost(usd_per_hour: float) -> float:
        cluster = Cluster.parse(mixed).with_prices({"a100-sxm": usd_per_hour})
        plan = wj.plan(MODEL, cluster, 4096, 0.05, limits=limits)
        assert plan.prediction is not None and plan.prediction.usd_per_million_tokens is not None
        return plan.prediction.usd_per_million_tokens

    without = even.usd_per_million_tokens_without
    assert cost(price * 0.999) < without and cost(price * 1.001) == without
    assert min(price_curve(even)) < price < max(price_curve(even))


def test_break_even_needs_an_alternative() -> None:
    with pytest.raises(ValueError, match="needs another device type"):
        price_break_even(MODEL, CLUSTER, 4096, 0.05, "h100-sxm", limits=SMALL)


def test_a_type_nothing_runs_without_has_no_price_too_high() -> None:
    limits = wj.SearchLimits(max_devices=1, max_groups=1, batches=(1,))
    cluster = Cluster.parse("h100-sxm:1,l40s:1")  # 27 billion weights do not fit an L40S
    even = price_break_even("gemma-3-27b", cluster, 1024, 1.0, "h100-sxm", limits=limits)
    assert even.usd_per_hour == math.inf and "nothing runs without h100-sxm" in even.describe()
    other = price_break_even("gemma-3-27b", cluster, 1024, 1.0, "l40s", limits=limits)
    assert other.usd_per_hour is None and "no cheapest plan at any price" in other.describe()
