"""Settings that tests of the workbench share: a small model, cluster and search space."""

from __future__ import annotations

import weavejax as wj
from weavejax.meshes.cluster import Cluster
from weavejax.models.presets import preset_config
from weavejax.workbench.cases import Case

MODEL, CLUSTER = "gemma-3-4b", "h100-sxm:4"
SMALL = wj.SearchLimits(
    max_devices=4,
    max_replicas=2,
    max_microbatches=2,
    max_groups=2,
    batches=(16, 64),
    sub_blocks=(1,),
)


def case(**changes) -> Case:  # type: ignore[no-untyped-def]
    values = {
        "config": preset_config(MODEL),
        "cluster": Cluster.parse(CLUSTER),
        "context": 4096,
        "tpot_slo_s": 0.02,
        "limits": SMALL,
    }
    return Case(**{**values, **changes})
