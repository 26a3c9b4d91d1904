"""A coordinator to be killed: ``python -m weavejax.bench.faults_coordinator MODEL BACKEND``.

Prints the process numbers of its workers, then serves without end.
"""

from __future__ import annotations

import sys

from weavejax.bench.cluster_tokens import template_plans
from weavejax.models.loading import load_model
from weavejax.request import SamplingParams
from weavejax.serve import serve
from weavejax.workers.backends import Backend
from weavejax.workers.executor import ClusterExecutor


def main(model_name: str, backend: Backend) -> None:
    """Serve until killed."""
    model = load_model(model_name, random_weights=True, scale="tiny")
    plan = template_plans(model.config)["afd, 1 to 2"]
    engine = serve(model, plan, backend=backend, prefill_chunks=(8,), progress=False)
    executor = engine.executor
    assert isinstance(executor, ClusterExecutor)
    print(*(process for *_, process in executor.workers()), flush=True)
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    while True:
        engine.generate([[3, 4, 5]] * 6, params)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])  # type: ignore[arg-type]
