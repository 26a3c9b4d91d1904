"""Plans whose groups are processes, beside what the operators timed here predict of them."""

from __future__ import annotations

import os

import pytest
from serving import nine_heads

from weavejax.measure.clustered import measure_clustered
from weavejax.measure.machine import BETWEEN_PROCESSES
from weavejax.measure.profiling import has_point, start_profile
from weavejax.measure.suite import Case, Setting
from weavejax.plan import Parallelism, Template


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_every_plan_that_fits_the_cores_is_predicted_and_measured():
    model, afd = nine_heads(), Template(cuts=(3,))
    cases = (
        Case(name="colocated", template=Template(), groups=1, microbatches=2),
        Case(name="afd", template=afd, groups=2, microbatches=3),
        Case(name="three", template=Template(cuts=(1, 3)), groups=3, microbatches=1),
    )
    setting = Setting(model=model.config.name, context=32, cases=cases)
    seen: list[tuple[str, int, int]] = []
    rows, data = measure_clustered(
        setting,
        model,
        start_profile(None, "cpu", "float32"),
        sorted(os.sched_getaffinity(0))[:2],
        rounds=1,
        progress=lambda *step: seen.append(step),
    )
    assert [(row.plan, row.microbatches) for row in rows] == [("colocated", 2), ("afd", 3)]
    assert all(row.predicted_s > 0 and row.measured_s > 0 for row in rows)
    link = data.devices["cpu"].links[BETWEEN_PROCESSES]
    assert link.latency_s > 0 and link.bandwidth_bytes_per_s > 0 and link.busy_s >= 0
    # 2 and 3 microbatches are judged; 1 and 4 tell what a move costs
    for size in (12, 6, 4, 3):
        assert has_point(data.devices["cpu"], model, Parallelism(), size, 32)
    title = f"{setting.model} at 32"
    assert seen[0] == (f"{title}, 1 microbatches", 0, 1)
    assert seen[-1] == (f"{title}, 4 microbatches", 1, 1)
