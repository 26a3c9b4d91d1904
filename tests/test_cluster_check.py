"""What ``weavejax cluster-check`` measures and says."""

from __future__ import annotations

import dataclasses

import pytest
from serving import tiny_model

from weavejax.bench.cluster_tokens import compare_tokens, template_plans
from weavejax.bench.faults import Campaign, FaultRound, count_wrong, python_module, run_faults
from weavejax.bench.growth import Usage, measure_growth
from weavejax.bench.overlap import measure_overlap
from weavejax.bench.two_hosts import two_namespaces, why_not
from weavejax.cli import main
from weavejax.cli.cluster_check import fault_summary, grows, overlap_table
from weavejax.request import Output
from weavejax.workers.executor import ClusterExecutor
from weavejax.workers.failure import WorkerError
from weavejax.workers.launch import LocalLauncher
from weavejax.workers.options import WorkerOptions
from weavejax.workers.share import WorkerName

MODEL = "llama-3.1-8b"


def output(*tokens: int, error: str | None = None) -> Output:
    return Output(
        index=0,
        prompt_token_ids=(1,),
        token_ids=tokens,
        text="",
        finish_reason="length" if error is None else "error",
        error=error,
    )


def test_lost_doubled_and_unnamed_requests_are_counted() -> None:
    failure = WorkerError("died", WorkerName(0, 0))
    expected = [output(1, 2, 3)] * 3
    named = f"the engine stopped: WorkerError: {failure}"
    good = [output(1, 2, 3), output(1, 2, error=named), output(error=named)]
    assert count_wrong(good, expected, failure) == 0
    assert count_wrong(good[:2], expected, failure) == 1  # lost
    assert count_wrong([output(1, 2, 2, 3), *good[1:]], expected, failure) == 1  # doubled
    assert count_wrong([output(1, error="oh"), *good[1:]], expected, failure) == 1  # no name
    assert count_wrong([output(2, error=named), *good[1:]], expected, failure) == 1
    assert count_wrong([output(1, error=named), *good[1:]], expected, None) == 3


def test_the_summary_counts() -> None:
    one = FaultRound(
        kind="kill", victim="0.0", at_pass=3, restarts=True, finished=5, failed=1, wrong=0,
        named="x", left=0, seconds=1.25,
    )  # fmt: skip
    text = fault_summary([one, dataclasses.replace(one, kind="stop", wrong=2, left=1)])
    assert text == (
        "2 faults (1 kill, 1 stop): 10 requests finished, 2 ended with a named error, 2 lost, "
        "doubled or wrong, 1 processes left; at most 1.2 s"
    )


@pytest.mark.parametrize("field", ["threads", "descriptors", "memory_bytes"])
def test_growth_of_any_kind_is_seen(field: str) -> None:
    first = Usage(process="0.0", iterations=1, memory_bytes=2**30, threads=8, descriptors=9)
    assert not grows([first, first])
    more = 2**24 + 1 if field == "memory_bytes" else 1
    assert grows([first, dataclasses.replace(first, **{field: getattr(first, field) + more})])


def test_the_list_has_every_kind_of_plan() -> None:
    plans = template_plans(tiny_model(MODEL).config)
    assert len(plans) >= 16
    assert {len(plan.groups) for plan in plans.values()} == {1, 2, 3}
    ratios = {tuple(group.replicas for group in plan.groups) for plan in plans.values()}
    assert {(3, 2), (2, 3), (1, 2), (2, 1)} <= ratios


@pytest.mark.slow
def test_faults_leave_nothing_and_lose_nothing() -> None:
    model = tiny_model(MODEL)
    campaign = Campaign(
        model=model,
        plan=template_plans(model.config)["afd"],
        launcher=LocalLauncher,
        options=WorkerOptions(failure_timeout_s=3.0),
        prompts=[[3, 4, 5], [6] * 11],
        coordinator_command=python_module("weavejax.bench.faults_coordinator", MODEL, "processes"),
    )
    drop, killed = run_faults(campaign, 2, kinds=("drop", "coordinator"))
    assert (drop.finished, drop.failed, drop.wrong, drop.left) == (2, 0, 0, 0)
    assert "lost its connection with worker" in drop.named
    assert (killed.wrong, killed.left) == (0, 0)


@pytest.mark.slow
def test_tokens_growth_and_overlap_of_a_small_plan() -> None:
    model = tiny_model(MODEL)
    plans = template_plans(model.config, slots=12)
    device = WorkerOptions(moves="device")
    [row] = compare_tokens(
        model, {"cad": plans["cad"]}, LocalLauncher, options=device, lengths=(3, 9), max_tokens=4
    )
    assert row.same and row.workers == 2
    [point] = measure_overlap(
        model, lambda count: plans["afd, 2 microbatches"], LocalLauncher, (2,), repeats=1,
        iterations=2,
    )  # fmt: skip
    assert point.simulated_s > 0 and point.round_trip_s > 0
    assert point.boundaries == 2 * model.config.num_layers
    assert overlap_table([point], "x").row_count == 1
    launcher = LocalLauncher()
    executor = ClusterExecutor(model, plans["colocated"], launcher, chunks=(8,))
    try:
        usages = measure_growth(executor, 10, samples=2)
    finally:
        executor.close()
    assert {(usage.process, usage.iterations) for usage in usages} == {
        (process, count) for process in ("0.0", "coordinator") for count in (1, 5, 10)
    }


@pytest.mark.skipif(why_not() is not None, reason=f"two namespaces: {why_not()}")
def test_two_namespaces_are_made_and_removed() -> None:
    import subprocess

    def there() -> str:
        return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout

    with two_namespaces(0.001) as names:
        assert all(name in there() for name in names)
    assert not any(name in there() for name in names)


def test_a_plan_that_is_not_in_the_list_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster-check", "tokens", "--only", "sideways"]) == 2
    assert "got sideways" in capsys.readouterr().err
