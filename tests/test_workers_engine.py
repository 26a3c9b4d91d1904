"""Device groups as processes: the same tokens, failures that end in time, nothing left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from serving import group, make_plan, random_prompts, tiny_model

from weavejax.bench.faults import count_alive
from weavejax.cli.serve_cluster import workers_table
from weavejax.engine import Engine
from weavejax.plan import Plan, PlanError, Template
from weavejax.request import Output, SamplingParams
from weavejax.serve import serve
from weavejax.workers.executor import ClusterExecutor
from weavejax.workers.options import WorkerOptions

OPTIONS = WorkerOptions(failure_timeout_s=3.0, restarts=5)
PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)
LENGTHS = (1, 8, 9, 17, 3)


def cluster_plan() -> Plan:
    """Two groups, one and two replicas, two microbatches."""
    model = tiny_model("llama-3.1-8b")
    return make_plan(model, Template(cuts=(3,)), group(4), group(4, 2), microbatches=2)


def prompts() -> list[list[int]]:
    return random_prompts(tiny_model("llama-3.1-8b"), LENGTHS)


@pytest.fixture(scope="module")
def expected() -> list[Output]:
    model = tiny_model("llama-3.1-8b")
    with serve(model, make_plan(model, Template(), group(4)), prefill_chunks=(8,)) as engine:
        return engine.generate(prompts(), PARAMS)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    model = tiny_model("llama-3.1-8b")
    with serve(
        model, cluster_plan(), backend="processes", workers=OPTIONS, prefill_chunks=(8,)
    ) as engine:
        yield engine
        processes = executor_of(engine).coordinator.process_ids().values()
    assert count_alive(processes) == 0


def executor_of(engine: Engine) -> ClusterExecutor:
    assert isinstance(engine.executor, ClusterExecutor)
    return engine.executor


def tokens(outputs: list[Output]) -> list[tuple[int, ...]]:
    return [output.token_ids for output in outputs]


@pytest.mark.slow
def test_workers_give_the_tokens_of_one_process(engine: Engine, expected: list[Output]) -> None:
    outputs = engine.generate(prompts(), PARAMS)
    assert tokens(outputs) == tokens(expected)
    assert engine.stats().programs_compiled > 0
    assert workers_table(engine).row_count == 3


@pytest.mark.slow
def test_a_client_that_disappears_frees_its_slots(engine: Engine, expected: list[Output]) -> None:
    stream = engine.stream(prompts(), PARAMS)
    next(stream)
    assert engine.stats().running > 0
    stream.close()
    assert engine.stats().running == engine.stats().waiting == 0
    assert tokens(engine.generate(prompts(), PARAMS)) == tokens(expected)


@pytest.mark.slow
def test_requests_survive_a_stopped_worker(engine: Engine, expected: list[Output]) -> None:
    executor = executor_of(engine)
    before = executor.coordinator.process_ids()
    stream = engine.stream(prompts(), PARAMS)
    outputs, struck = [], False
    for chunk in stream:
        if len(chunk.token_ids) and not struck and chunk.index == 1:
            os.kill(sorted(before.values())[1], signal.SIGSTOP)
            struck = True
        if chunk.output is not None:
            outputs.append(chunk.output)
    assert tokens(sorted(outputs, key=lambda output: output.index)) == tokens(expected)
    assert executor.last_failure is not None
    assert executor.last_failure.stage is not None
    assert count_alive(before.values()) == 0


@pytest.mark.slow
def test_without_restarts_requests_end_with_the_named_failure(engine: Engine) -> None:
    """Last, since the engine has ended then."""
    executor = executor_of(engine)
    executor.allow_restarts(0)
    processes = executor.coordinator.process_ids()
    victim = next(name for name in processes if name.group == 1)
    os.kill(processes[victim], signal.SIGKILL)
    outputs = engine.generate(prompts(), PARAMS)
    assert {output.finish_reason for output in outputs} == {"error"}
    assert all(
        f"{victim.describe()} died (killed by signal 9)" in str(output.error) for output in outputs
    )
    assert count_alive(processes.values()) == 0
    with pytest.raises(RuntimeError, match="this engine stopped in the middle of an iteration"):
        engine.generate([[1]])


@pytest.mark.slow
def test_ray_places_the_workers(expected: list[Output]) -> None:
    pytest.importorskip("ray")
    model = tiny_model("llama-3.1-8b")
    plan = make_plan(model, Template(cuts=(1,), offset=1), group(4), group(4))
    with serve(model, plan, backend="ray", workers=OPTIONS, prefill_chunks=(8,)) as engine:
        processes = executor_of(engine).coordinator.process_ids().values()
        assert tokens(engine.generate(prompts(), PARAMS)) == tokens(expected)
    assert count_alive(processes) == 0


def test_a_worker_that_cannot_start_is_named_with_its_log() -> None:
    from weavejax.workers.failure import WorkerError

    model = tiny_model("llama-3.1-8b")
    plan = make_plan(model, Template(), group(4))
    options = WorkerOptions(platform="no-such-platform")
    with pytest.raises(WorkerError, match="group 0 replica 0 failed .*no-such-platform"):
        serve(model, plan, backend="processes", workers=options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backend": "threads"}, "backend must be one of in-process, processes, ray, got"),
        ({"backend": "processes", "address": "a:1"}, "address is of a Ray cluster and needs"),
        ({"address": "a:1"}, 'address and workers need backend="ray" or "processes"'),
        ({"backend": "processes", "oversubscribe": True}, "workers have devices of their own"),
    ],
)
def test_arguments_that_do_not_go_together(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        serve(tiny_model("llama-3.1-8b"), "afd", **arguments)


def test_a_trace_needs_groups_in_this_process_and_a_plan_must_fit() -> None:
    plan = cluster_plan()
    other = tiny_model("gemma-3-27b")
    with pytest.raises(PlanError, match="the plan is for model"):
        serve(other, plan, backend="processes")
