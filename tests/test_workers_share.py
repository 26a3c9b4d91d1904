"""Rows of replicas and the routes between them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import group, make_plan, tiny_model

from weavejax.plan import Template
from weavejax.runtime.cells import plan_cells
from weavejax.workers.launch import LocalLauncher, deal_cores
from weavejax.workers.model_source import describe_model, open_model
from weavejax.workers.options import WorkerOptions
from weavejax.workers.share import WorkerName, row_routes, worker_names, worker_share

COUNTS = st.integers(1, 5)


@given(source=COUNTS, destination=COUNTS, per_cell=st.integers(1, 3), microbatches=COUNTS)
def test_every_row_crosses_once_and_arrives_in_order(
    source: int, destination: int, per_cell: int, microbatches: int
) -> None:
    slots = np.lcm(source, destination) * per_cell * microbatches
    model = tiny_model("llama-3.1-8b")
    groups = group(int(slots), source), group(int(slots), destination)
    plan = make_plan(model, Template(cuts=(3,)), *groups, microbatches=microbatches)
    routes = row_routes(plan, 0, 1)
    for rows in (plan.microbatch_rows, plan_cells(plan).count):  # a decode and a prefill pass
        whole = np.arange(rows)
        crossed = np.concatenate(
            [route.rows(worker_share(plan, route.source).mine(whole)) for route in routes]
        )
        np.testing.assert_array_equal(np.sort(crossed), whole)
        for replica in range(destination):
            name = WorkerName(1, replica)
            got = [
                route.rows(worker_share(plan, route.source).mine(whole))
                for route in routes
                if route.destination == name
            ]
            np.testing.assert_array_equal(np.concatenate(got), worker_share(plan, name).mine(whole))


def test_names() -> None:
    plan = make_plan(tiny_model("llama-3.1-8b"), Template(cuts=(3,)), group(6, 3), group(6, 2))
    assert [str(name) for name in worker_names(plan)] == ["0.0", "0.1", "0.2", "1.0", "1.1"]
    assert WorkerName.parse("1.2").describe() == "group 1 replica 2"


@given(cores=st.integers(0, 9), workers=st.integers(1, 5))
def test_cores_are_dealt_evenly_and_never_twice(cores: int, workers: int) -> None:
    shares = deal_cores(range(cores), workers)
    if cores < workers:
        assert shares == [None] * workers
        return
    dealt = [core for share in shares for core in share or ()]
    assert len(dealt) == len(set(dealt))
    assert {len(share or ()) for share in shares} == {cores // workers}


def test_processes_do_not_take_accelerators() -> None:
    plan = make_plan(tiny_model("llama-3.1-8b"), Template(), group(4))
    accelerated = plan.to_dict()
    accelerated["groups"][0]["device"] = "h100-sxm"
    launcher = LocalLauncher()
    try:
        with pytest.raises(ValueError, match="run on CPU, got groups on h100-sxm; use backend="):
            launcher.place(type(plan).from_dict(accelerated), "127.0.0.1")
    finally:
        launcher.close()


def test_a_model_in_memory_alone_cannot_be_opened_elsewhere() -> None:
    model = tiny_model("llama-3.1-8b")

    class Elsewhere:
        location = "nowhere at all"

    with pytest.raises(ValueError, match="workers open the model themselves, from a directory"):
        describe_model(type(model)(config=model.config, source=Elsewhere()))  # type: ignore[arg-type]
    assert open_model(describe_model(model)).source.seed == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("field", "value"),
    [("failure_timeout_s", 0.0), ("start_timeout_s", float("nan")), ("restarts", -1)],
)
def test_options_out_of_range_are_named(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} must be a .*, got"):
        WorkerOptions(**{field: value})  # type: ignore[arg-type]
