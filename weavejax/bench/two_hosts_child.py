"""Inside the first namespace: what :mod:`weavejax.bench.two_hosts` measures. Orders on stdin."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import jax

from weavejax.bench.overlap import measure_overlap
from weavejax.bench.two_hosts import ADDRESSES, TwoHostsLauncher
from weavejax.default_plans import model_ref
from weavejax.models.loading import Model, load_model
from weavejax.plan import DeviceGroup, Plan, Template, Workload
from weavejax.request import SamplingParams
from weavejax.serve import serve
from weavejax.workers.options import WorkerOptions


def main() -> None:
    """Compare tokens, measure, and print one line of JSON."""
    orders = json.loads(sys.stdin.read())
    jax.config.update("jax_platforms", "cpu")
    model = load_model(orders["model"])
    options = WorkerOptions(interface=ADDRESSES[0])

    def make_plan(microbatches: int) -> Plan:
        group = DeviceGroup(device="cpu", resident_batch=orders["rows"])
        return Plan(
            model=model_ref(model.config),
            workload=Workload(context=orders["context"]),
            template=Template(
                layers=orders["layers"], cuts=tuple(orders["cuts"]), offset=orders["offset"]
            ),
            groups=(group, group),
            microbatches=microbatches,
        )

    points = measure_overlap(
        model,
        make_plan,
        lambda: TwoHostsLauncher(orders["namespace"]),
        orders["microbatches"],
        repeats=orders["repeats"],
        options=options,
    )
    same = _same_tokens(model, make_plan(orders["microbatches"][-1]), orders, options)
    print(json.dumps({"points": [dataclasses.asdict(one) for one in points], "same": same}))


def _same_tokens(model: Model, plan: Plan, orders: dict[str, Any], options: WorkerOptions) -> bool:
    prompts = [[5, 6, 7, 8, 9], [11, 12]]
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    with serve(model, plan, oversubscribe=True, prefill_chunks=(8,), progress=False) as engine:
        expected = engine.generate(prompts, params)
    with serve(
        model,
        plan,
        backend=TwoHostsLauncher(orders["namespace"]),
        workers=options,
        prefill_chunks=(8,),
    ) as engine:
        outputs = engine.generate(prompts, params)
    return [o.token_ids for o in outputs] == [o.token_ids for o in expected]


if __name__ == "__main__":
    main()
