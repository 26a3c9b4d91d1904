"""Comparisons agree with the planner they ask."""

from __future__ import annotations

import csv
import io
import sys

import numpy as np
import pytest
from workbench_cases import CLUSTER, MODEL, SMALL, case

import weavejax as wj
from weavejax.planner.policies import policy_named
from weavejax.workbench.cases import describe_template, solve
from weavejax.workbench.table import Table, cell


@pytest.fixture(scope="module")
def table() -> Table:
    return wj.compare(MODEL, CLUSTER, [4096, 8192], [0.02, 1e-5], limits=SMALL, jobs=1)


def test_every_setting_and_policy_is_a_row_in_order(table: Table) -> None:
    rows = [(r["context_tokens"], r["tpot_slo_ms"], r["policy"]) for r in table]
    policies = ("colocated", "afd", "cad", "weave")
    assert rows == [(c, s, p) for c in (4096, 8192) for s in (20.0, 0.01) for p in policies]


def test_costs_are_the_planner_s(table: Table) -> None:
    for policy in ("afd", "weave"):
        plan = wj.plan(MODEL, CLUSTER, 4096, 0.02, policy=policy, limits=SMALL)
        [row] = table.where(context_tokens=4096, tpot_slo_ms=20.0, policy=policy)
        assert plan.prediction is not None
        assert row["usd_per_million_tokens"] == plan.prediction.usd_per_million_tokens
        assert row["batch"] == plan.batch and row["devices"] == plan.num_devices
        assert row["template"] == describe_template(plan.template)


def test_a_setting_without_a_plan_is_a_row_with_the_reason(table: Table) -> None:
    for row in table.where(tpot_slo_ms=0.01):
        assert row["status"] == "latency" and "nearest feasible target" in row["reason"]
        assert row["usd_per_million_tokens"] is None and row["gain_over_colocated"] is None


def test_gain_is_colocated_cost_over_own(table: Table) -> None:
    rows = table.where(context_tokens=8192, tpot_slo_ms=20.0)
    costs = dict(zip(rows.column("policy"), rows.column("usd_per_million_tokens"), strict=True))
    for row in rows:
        assert row["gain_over_colocated"] == costs["colocated"] / costs[row["policy"]]
    assert costs["weave"] <= min(costs["colocated"], costs["afd"], costs["cad"])


def test_limits_may_differ_by_policy() -> None:
    held = {"colocated": wj.SearchLimits(tensor_parallel=(1,), batches=(16,))}
    [row] = wj.compare(MODEL, CLUSTER, 4096, 0.02, ["colocated"], limits=held, jobs=1)
    assert row["groups"] == "1 x h100-sxm" and row["batch"] == 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [0.02]), "at least one context, target and policy, got 0 settings"),
        (([4096], [0.02], ["wave"]), "no policy is called 'wave' .did you mean 'weave'"),
        (([4096], [0.02], []), "0 policies"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        wj.compare(MODEL, CLUSTER, *arguments, limits=SMALL, jobs=1)


def test_one_policy_may_be_a_word_and_numbers_numpy_s() -> None:
    one = wj.compare(MODEL, CLUSTER, 4096, 0.02, "colocated", limits=SMALL, jobs=1)
    again = wj.compare(
        MODEL, CLUSTER, np.array([4096]), np.float64(0.02), "colocated", limits=SMALL, jobs=1
    )
    assert one.records == again.records and one.column("policy") == ["colocated"]
    swept = wj.sweep(MODEL, CLUSTER, 4096, 0.02, "context", [4096], "colocated", limits=SMALL)
    assert swept.column("policy") == ["colocated"]
    with pytest.raises(TypeError, match="must be the name of a registered policy, got <function"):
        wj.compare(MODEL, CLUSTER, 4096, 0.02, [policy_named("afd")], limits=SMALL, jobs=1)  # type: ignore[list-item]


def test_a_policy_that_fails_leaves_the_others_their_rows() -> None:
    @wj.register_policy("compare-test-odd")
    def odd(block, groups):  # type: ignore[no-untyped-def]
        return [(1, 2)]

    @wj.register_policy("compare-test-raises")
    def raises(block, groups):  # type: ignore[no-untyped-def]
        return 1 / 0

    names = ["compare-test-odd", "colocated", "compare-test-raises"]
    table = wj.compare(MODEL, CLUSTER, 4096, 0.02, names, limits=SMALL, jobs=1)
    assert table.column("status") == ["policy", "ok", "policy"]
    odd_reason, none, raise_reason = table.column("reason")
    assert "'compare-test-odd' for K=1 must return a list of weavejax.Template" in odd_reason
    assert "'compare-test-raises' fails for K=1: ZeroDivisionError" in raise_reason and not none
    assert table.column("usd_per_million_tokens")[::2] == [None, None]
    assert solve(case(policy="compare-test-odd")).constraint == "policy"
    with pytest.raises(wj.PolicyError, match="'compare-test-raises' fails"):
        wj.plan(MODEL, CLUSTER, 4096, 0.02, policy="compare-test-raises", limits=SMALL)


def test_tables_write_csv_and_markdown(table: Table, tmp_path) -> None:  # type: ignore[no-untyped-def]
    text = table.to_csv(tmp_path / "t.csv")
    read = list(csv.DictReader(io.StringIO(text)))
    assert (tmp_path / "t.csv").read_text() == text and len(read) == len(table)
    assert float(read[0]["usd_per_million_tokens"]) == table.records[0]["usd_per_million_tokens"]
    lines = table.to_markdown(columns=["policy", "status"]).splitlines()
    assert lines[0] == "| policy | status |" and len(lines) == 2 + len(table)
    assert cell("a|b\nc") == "a/b c" and cell(True) == "yes"
    with pytest.raises(KeyError, match="no column 'cost'; columns are model"):
        table.column("cost")


@pytest.mark.parametrize("form", ["svg", "png"])
def test_tables_draw_themselves_the_same_every_time(table: Table, form: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    paths = [tmp_path / f"{name}.{form}" for name in "ab"]
    for path in paths:
        table.plot(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    if form == "svg":
        text = paths[0].read_text()
        assert "USD per million output tokens" in text and "colocated" in text and "8K" in text
    with pytest.raises(ValueError, match="at least one record"):
        Table(records=()).plot(paths[0])


def test_drawing_says_what_it_needs(table: Table, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="needs matplotlib 3.9 or newer"):
        table.plot(tmp_path / "t.svg")
