"""Compile everything a search runs, so that its seconds are those of the search alone."""

from __future__ import annotations

import time
from functools import cache

from weavejax.meshes.cluster import Cluster
from weavejax.meshes.devices import DeviceSpec, Link
from weavejax.models.config import LayerKind, ModelConfig
from weavejax.planner.branch_and_bound import Search
from weavejax.planner.limits import SearchLimits
from weavejax.planner.partition import legal_templates, partition_block
from weavejax.planner.space import build_space
from weavejax.profiles.estimator import Profile
from weavejax.profiles.schema import ProfileData


def compile_search() -> float:
    """Run a search of a few candidates, once per process; returns the seconds it took.

    Compiled code is kept on disk, so only the first run on a machine takes long.
    """
    start = time.perf_counter()
    _search_tiny()
    return time.perf_counter() - start


@cache
def _search_tiny() -> None:
    link = Link(bandwidth_bytes_per_s=1e9, latency_s=1e-6)
    device = DeviceSpec(
        name="tiny",
        memory_bytes=1e9,
        bandwidth_bytes_per_s=1e9,
        bf16_flop_per_s=1e12,
        usd_per_hour=1.0,
        devices_per_node=2,
        intra_node=link,
        inter_node=link,
        source="made up, to compile the search",
    )
    config = ModelConfig(
        name="tiny",
        model_type="llama",
        vocab_size=8,
        hidden_size=8,
        layer_kinds=(LayerKind(attention="full"),),
        num_heads=2,
        num_kv_heads=2,
        head_dim=4,
        intermediate_size=8,
        max_position=8,
    )
    limits = SearchLimits(max_batch=4, max_groups=2, tensor_parallel=(1,), max_replicas=2)
    cluster = Cluster(devices=((device, 4),))
    profile = Profile(ProfileData(name="tiny", devices={}), devices={"tiny": device})
    space = build_space(config, cluster, 4, limits, profile)
    templates = {2: tuple(legal_templates(partition_block(config), 2))}
    Search(space, templates, 1e9).run()
