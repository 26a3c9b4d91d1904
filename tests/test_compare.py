"""Comparisons, sweeps and what-if questions agree with the planner they ask."""

from __future__ import annotations

import csv
import io
import math
import sys

import numpy as np
import pytest

import weavejax as wj
from weavejax.cli import main
from weavejax.meshes.cluster import Cluster
from weavejax.models.presets import preset_config
from weavejax.models.specs import LAYER_OPERATORS
from weavejax.planner import partition_block
from weavejax.planner.policies import policy_named, policy_names
from weavejax.schedule import stage_occurrences
from weavejax.workbench import example_policies  # noqa: F401  registers its policies
from weavejax.workbench import searches as searches_module
from weavejax.workbench.cases import Case, describe_template, portable, record, solve
from weavejax.workbench.searches import Searches
from weavejax.workbench.sweep import AXES, with_device_ratio
from weavejax.workbench.table import Table, cell
from weavejax.workbench.variant import ProfileVariant
from weavejax.workbench.whatif import price_break_even, price_curve, region

MODEL, CLUSTER = "gemma-3-4b", "h100-sxm:4"
SMALL = wj.SearchLimits(
    max_devices=4,
    max_replicas=2,
    max_microbatches=2,
    max_groups=2,
    batches=(16, 64),
    sub_blocks=(1,),
)
OPTIONS = ["--max-devices", "2", "--max-replicas", "1", "--max-groups", "1"]


@pytest.fixture(scope="module")
def table() -> Table:
    return wj.compare(MODEL, CLUSTER, [4096, 8192], [0.02, 1e-5], limits=SMALL, jobs=1)


def case(**changes) -> Case:  # type: ignore[no-untyped-def]
    values = {
        "config": preset_config(MODEL),
        "cluster": Cluster.parse(CLUSTER),
        "context": 4096,
        "tpot_slo_s": 0.02,
        "limits": SMALL,
    }
    return Case(**{**values, **changes})


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


def test_commands_print_and_write(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    policies = tmp_path / "mine.py"
    policies.write_text(
        "import weavejax as wj\n"
        "@wj.register_policy('compare-test-file')\n"
        "def mine(block, groups):\n"
        "    return [wj.Template()] if groups == 1 else []\n"
    )
    (tmp_path / "broken.py").write_text(
        "import weavejax as wj\n"
        "wj.register_policy('compare-test-broken')(lambda block, groups: 5)\n"
    )
    broken = ["compare-test-broken", "--policy-module", str(tmp_path / "broken.py")]
    picture = tmp_path / "c.svg"
    arguments = ["compare", MODEL, "--cluster", "h100-sxm:2", "--context", "4096", "--tpot-slo-ms"]
    arguments += ["20", *OPTIONS, "--jobs", "1", "--plot", str(picture), "--policy", "colocated"]
    # One file named twice, in two ways, runs once.
    twice = ["--policy-module", str(policies), "--policy-module", str(tmp_path / "." / "mine.py")]
    assert main([*arguments, "compare-test-file", *broken, *twice]) == 0
    shown, error = capsys.readouterr()
    assert "| compare-test-broken | - | - | - | - | policy |" in shown
    assert error.count("'compare-test-broken' for K=1 must return a list") == 1
    assert "| 4,096 | 20 | compare-test-file |" in shown and picture.read_text().startswith("<?xml")
    assert "compare-test-file" in policy_names()
    setting = ["--cluster", "h100-sxm:2", "--context", "4096", "--tpot-slo-ms", "1e-3", *OPTIONS]
    sweep = ["sweep", MODEL, "context", "4096", *setting, "--policy", "colocated", "--jobs", "1"]
    assert main(sweep) == 1
    assert "| latency |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("nowhere.py", "no such file"),
        ("weavejax.no_such_module", "No module named"),
        ("straddle", "did you mean straddle.py?"),
    ],
)
def test_a_policy_module_that_is_not_there(  # type: ignore[no-untyped-def]
    module, words, capsys, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "straddle.py").touch()
    arguments = ["plan", MODEL, "--cluster", CLUSTER, "--context", "1", "--tpot-slo-ms", "1"]
    assert main([*arguments, "--policy-module", module]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "policy", "names", "attention"),
    [
        ("gemma-3-27b", "hybrid-cad", {"attn_core"}, {"full"}),
        ("qwen3-next-80b-a3b", "hybrid-cad", {"attn_core"}, {"full"}),
        ("qwen3-next-80b-a3b", "expert-layers", {"ffn"}, {"full", "linear"}),
    ],
)
def test_an_example_policy_isolates_what_it_says(model, policy, names, attention) -> None:  # type: ignore[no-untyped-def]
    config = preset_config(model)
    [template] = policy_named(policy)(partition_block(config), 2)
    isolated = []
    for owner in (0, 1):
        found = {
            (LAYER_OPERATORS[index % 4], config.layer_kinds[index // 4].attention)
            for stage in stage_occurrences(template, config.num_layers, 2)
            if stage.owner == owner
            for index in range(stage.start, stage.stop)
        }
        isolated.append(found)
    assert {(name, kind) for name in names for kind in attention} in isolated
    assert not isolated[0] & isolated[1]


def test_example_policies_offer_nothing_where_they_do_not_apply() -> None:
    gemma = partition_block(preset_config("gemma-3-27b"))
    assert policy_named("expert-layers")(gemma, 2) == policy_named("three-way")(gemma, 2) == []


def test_drawing_says_what_it_needs(table: Table, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="needs matplotlib 3.9 or newer"):
        table.plot(tmp_path / "t.svg")
