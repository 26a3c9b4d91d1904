"""The reproduced figures: their parts against the planner, and every figure on a small grid."""

from __future__ import annotations

import csv
import dataclasses
import math

import pytest

import weavejax as wj
from weavejax.cli import main
from weavejax.models.presets import preset_config
from weavejax.planner.memory import RESERVE_FRACTION
from weavejax.reproduce import FIGURES, Bench, Scope, reproduce, write_report
from weavejax.reproduce.assumptions import (
    SWITCHES,
    apart,
    colocated_only,
    one_device,
    unpipelined,
    whole_cache,
    wide,
)
from weavejax.reproduce.homogeneous import (
    Key,
    base_outcomes,
    cases,
    cheapest_in,
    copied_mib,
    gains,
    infeasible_baselines,
    payload_mib,
)
from weavejax.reproduce.scope import GEMMA, PAPER_LIMITS, QWEN, case, paper
from weavejax.reproduce.theory_figures import active_params, group_model, kv_bytes
from weavejax.workbench.cases import Outcome, solve
from weavejax.workbench.searches import Searches
from weavejax.workbench.table import Table

SMALL = dataclasses.replace(
    PAPER_LIMITS,
    max_devices=8,
    max_groups=2,
    max_replicas=1,
    max_microbatches=2,
    tensor_parallel=(4,),
    batches=(32, 64),
    sub_blocks=(1, 6),
)
SCOPE = Scope(models=(GEMMA,), contexts=(8192,), strict=False, limits=SMALL, max_simulations=10_000)


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(scope=SCOPE, searches=Searches(1))


SLOW = ("fig2", "fig14", "table3")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in FIGURES]
)
def test_every_figure_writes_its_data_page_and_pictures(name, bench, tmp_path) -> None:  # type: ignore[no-untyped-def]
    figure = FIGURES[name](bench)
    assert figure.name == name
    paths = figure.write(tmp_path)
    assert [path.name for path in paths] == [
        f"{name}.{form}" for form in ("csv", "md", "svg", "png")
    ]
    with paths[0].open() as file:
        assert len(list(csv.DictReader(file))) == len(figure.data) > 0
    page = paths[1].read_text()
    assert page.startswith(f"# {figure.title}\n") and figure.statement in page
    assert f"({name}.svg)" in page and page.count("|---|") >= 1
    assert "nan" not in page and "inf " not in page
    assert paths[3].read_bytes().startswith(b"\x89PNG")


def test_bars_of_figure_9_are_the_planner_s(bench: Bench) -> None:
    data = FIGURES["fig9"](bench).data
    split = dataclasses.replace(SMALL, min_groups=2)
    plan = wj.plan(GEMMA, "h100-sxm:32", 8192, 0.060, limits=split)
    [row] = data.where(policy="weave")
    assert plan.prediction is not None
    assert row["usd_per_million_tokens"] == plan.prediction.usd_per_million_tokens
    [held] = data.where(policy="colocated TP<=2")
    assert held["status"] != "ok" or "TP 2" in held["groups"] or held["devices"] == 1


def outcome(cost: float | None) -> Outcome:
    """An outcome that costs this much."""
    if cost is None:
        return Outcome(plan=None, constraint="latency")
    plan = _plan()
    assert plan.prediction is not None
    prediction = dataclasses.replace(plan.prediction, usd_per_million_tokens=cost)
    return Outcome(plan=plan.replace(prediction=prediction))


def _plan() -> wj.Plan:
    plan = wj.default_plan(preset_config(GEMMA), device="h100-sxm", slots=1)
    found = wj.evaluate(plan.replace(cluster=wj.Cluster.parse("h100-sxm:1")), _profile())
    return plan.replace(prediction=found)


def _profile():  # type: ignore[no-untyped-def]
    from weavejax.profiles import load_profile

    return load_profile()


def test_a_gain_is_the_best_feasible_baseline_over_weave() -> None:
    def setting(slo_s: float, *costs: float | None) -> dict[Key, Outcome]:
        names = ("colocated", "afd", "cad", "weave")
        return {
            Key(GEMMA, slo_s, 8192, name): outcome(cost)
            for name, cost in zip(names, costs, strict=True)
        }

    outcomes = {
        **setting(0.01, 3.0, 2.0, None, 1.0),
        **setting(0.02, 1.0, 2.0, 3.0, 2.0),
        **setting(0.03, None, None, None, 1.0),
        **setting(0.04, 1.0, None, None, None),
    }
    found = list(gains(outcomes).values())
    assert found[:3] == [2.0, 0.5, math.inf] and math.isnan(found[3])
    assert cheapest_in(outcomes) == 2 and infeasible_baselines(outcomes) == 1 + 3 + 2
    assert gains(outcomes, QWEN) == {}


def test_the_grid_is_the_paper_s() -> None:
    grid = cases(Scope())
    assert len(grid) == 4 * paper()["fig9"]["settings"]
    told, limits = paper()["limits"], PAPER_LIMITS
    assert (limits.max_devices, limits.max_groups) == (told["devices"], told["groups"])
    assert (limits.max_replicas, limits.max_microbatches) == (
        told["replicas"],
        told["microbatches"],
    )
    assert list(Scope().contexts) == paper()["contexts"]
    for key, one in grid.items():
        assert one.limits.offsets == (key.policy == "cad")  # CAD is a template with an offset
        assert one.limits.min_groups == (2 if key.policy == "weave" else 1)


def test_every_figure_of_the_paper_names_both_models() -> None:
    told = paper()
    for values in (told["fig9"]["max_gain"], *told["fig10"].values(), told["fig11"], told["fig12"]):
        assert list(values) == [GEMMA, QWEN]
    errors = [abs(ratio - 1) for ratio in told["fig12"][GEMMA].values()]
    assert sum(errors) / 3 == pytest.approx(0.058, abs=5e-4)


def test_switches_change_what_they_name() -> None:
    afd = case(SCOPE, GEMMA, "h100-sxm:32", 8192, 0.06, "afd")
    colocated = dataclasses.replace(afd, policy="colocated")
    only = colocated_only(wide)
    assert only(afd) is afd and only(colocated).cluster.device_count == 64
    spec, _ = apart(afd).cluster.devices[0]
    assert spec.intra_node == spec.inter_node
    changed = [(switch.change(colocated), switch.change(afd)) for switch in SWITCHES]
    assert changed[0] == (colocated, afd)
    # No switch changes nothing, and no two the same: but that links of 100 us are shipped links.
    assert len({str([vars(c) for c in pair]) for pair in changed}) >= len(SWITCHES) - 1
    assert one_device(afd) is afd and one_device(colocated).limits.tensor_parallel == (1,)
    assert unpipelined(colocated) is colocated and unpipelined(afd).limits.max_microbatches == 1


def test_a_copy_a_device_counts_the_devices_that_receive(bench: Bench) -> None:
    for key, outcome in base_outcomes(bench).items():
        if outcome.plan is not None:
            ways = [group.tensor_parallel for group in outcome.plan.groups]
            least, copied = payload_mib(outcome), copied_mib(outcome)
            assert least * min(ways) <= copied <= least * max(ways)
            assert (least == 0) == (key.policy == "colocated")


def test_without_a_mixed_cache_memory_grows_and_time_stays() -> None:
    base = case(SCOPE, GEMMA, "h100-sxm:32", 8192, 0.06, "colocated")
    limits = dataclasses.replace(SMALL, batches=(16,))
    mixed, whole = (solve(dataclasses.replace(c, limits=limits)) for c in (base, whole_cache(base)))
    assert mixed.plan is not None and whole.plan is not None
    before, after = mixed.plan.prediction, whole.plan.prediction
    assert before is not None and after is not None
    assert after.round_trip_time_s == before.round_trip_time_s
    config = preset_config(GEMMA)
    assert config.sliding_window is not None
    sliding = sum(kind.attention == "sliding" for kind in config.layer_kinds)
    row_bytes = 2 * 2 * config.num_kv_heads * config.head_dim * (8192 - config.sliding_window)
    assert after.groups[0].cache_bytes - before.groups[0].cache_bytes == 16 * sliding * row_bytes
    qwen = case(SCOPE, QWEN, "h100-sxm:32", 8192, 0.06, "colocated")
    assert whole_cache(qwen) is qwen


def test_a_larger_space_never_costs_more(bench: Bench) -> None:
    for row in FIGURES["beyond"](bench).data:
        saved = [
            value for name, value in row.items() if name.endswith("saved") and value is not None
        ]
        assert len(saved) == 8 and min(saved) >= 0


def test_groups_apart_pay_for_the_network_and_sharing_ones_do_not(bench: Bench) -> None:
    [table] = [table for _, table in FIGURES["fig14"](bench).sections]
    latency = table.where(groups="apart", axis="latency_us").column("weave")
    assert latency == sorted(latency, key=lambda cost: math.inf if cost is None else cost)
    shared = table.where(groups="may share", axis="latency_us").column("weave")
    for near, far in zip(shared, latency, strict=True):
        assert far is None or near <= far


def test_figure_12_gives_the_paper_s_side_and_invents_none(bench: Bench) -> None:
    figure = FIGURES["fig12"](bench)
    assert set(figure.data.column("ours")) == {"not measured"}
    assert "NOT MEASURED" in figure.statement


def test_largest_batches_fill_the_memory(bench: Bench) -> None:
    [_, (_, fits)] = FIGURES["fig2"](bench).sections
    for row in fits:
        assert row["TP 1"] < row["TP 2"] < row["TP 4"] < row["TP 8"]
    config = preset_config(GEMMA)
    [row] = fits.where(context=131072)
    weights = 2 * 27e9
    free = 2 * 80e9 * (1 - RESERVE_FRACTION) - weights
    assert row["TP 2"] == pytest.approx(free / kv_bytes(config, 131072), rel=0.1)


def test_theory_figures_obey_their_theorems(bench: Bench) -> None:
    for row in FIGURES["fig4"](bench).data:
        assert row["gain"] is None or 1 <= row["gain"] < row["cap"]
    [(_, peaks)] = FIGURES["fig5"](bench).sections
    for row in peaks:
        bound = row["bound (1 + sqrt(eta))/2"]
        assert row["largest gain on these contexts"] <= row["peak gain of Theorem 3.2"] + 1e-9
        assert row["peak gain of Theorem 3.2"] <= bound + 1e-9
    touching = peaks.records[1]
    assert touching["peak gain of Theorem 3.2"] == pytest.approx(bound)
    for row in FIGURES["fig6"](bench).data:
        overlap = row["attention at most (ms)"] >= row["rest at least (ms)"]
        assert row["ranges overlap"] == overlap


def test_sizes_of_the_theory_come_from_the_model() -> None:
    config = preset_config("qwen3-235b-a22b")
    assert active_params(config) == pytest.approx(22e9, rel=0.05)
    once, twice = group_model(config, 8, 8), group_model(config, 4, 8)
    attention = (
        config.num_layers
        * 2
        * config.hidden_size
        * config.head_dim
        * (config.num_heads + config.num_kv_heads)
    )
    assert twice.weights_bytes - once.weights_bytes == pytest.approx(2 * attention, rel=0.01)


def test_an_unknown_figure_lists_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="figures are fig2, fig4.*; got fig3"):
        list(reproduce(["fig3"]))
    with pytest.raises(SystemExit):
        main(["reproduce", "fig3"])
    assert "invalid choice: 'fig3'" in capsys.readouterr().err


def test_the_command_writes_figures_and_a_report(tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    assert main(["reproduce", "fig6", "fig12", "fig6", "-o", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "2 figures in" in shown and "NOT MEASURED" in shown
    report = (tmp_path / "README.md").read_text()
    assert report.count("\n## ") == 2 and "(fig6.md)" in report and "(fig12.csv)" in report
    assert len(list(tmp_path.iterdir())) == 9


def test_a_report_of_tables(tmp_path) -> None:  # type: ignore[no-untyped-def]
    results = list(reproduce(["fig12"], scope=SCOPE, jobs=1))
    assert isinstance(results[0][0].data, Table)
    assert write_report(results, tmp_path).read_text().startswith("# The evaluation of OpWeave")
