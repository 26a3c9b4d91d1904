"""A made-up profile and small random problems for the planner's tests."""

from __future__ import annotations

import numpy as np

from weavejax.meshes.cluster import Cluster
from weavejax.meshes.devices import DeviceSpec, Link
from weavejax.models.config import LayerKind, ModelConfig, MoeConfig
from weavejax.planner.limits import SearchLimits


class FakeProfile:
    """Seconds drawn once per (device, operator, parallelism): floor, fixed part, part per row."""

    name = "fake"
    hash = "0" * 12

    def __init__(self, seed: int, scale_s: float = 1e-4, stage_overhead_s: float = 0.0) -> None:
        self.seed = seed
        self.scale_s = scale_s
        self.stage_overhead_s = stage_overhead_s
        self.drawn = {}

    def operator_times_s(self, operator, group, batches, context):
        key = (
            group.device,
            *map(str, operator.signature),
            group.tensor_parallel,
            group.expert_parallel,
            group.attention_data_parallel,
        )
        if key not in self.drawn:
            rng = np.random.default_rng([self.seed, *("/".join(map(str, key))).encode()])
            self.drawn[key] = (*rng.uniform(0, 1, 3) * self.scale_s, int(rng.integers(3)))
        floor, fixed, per_row, code = self.drawn[key]
        batches = np.asarray(batches, dtype=float)
        times_s = np.maximum(floor, fixed + per_row * batches / group.tensor_parallel)
        return times_s, np.full(len(batches), code)


def device(name, rng, memory_bytes=1e9):
    latency_s, bandwidth = rng.uniform(0, 4e-5), rng.uniform(1e7, 1e9)
    return DeviceSpec(
        name=name,
        memory_bytes=memory_bytes,
        bandwidth_bytes_per_s=1e12,
        bf16_flop_per_s=1e14,
        usd_per_hour=float(rng.choice([1.0, rng.uniform(0.5, 4)])),
        devices_per_node=int(rng.choice([2, 4, 8])),
        intra_node=Link(bandwidth_bytes_per_s=bandwidth * 5, latency_s=latency_s / 3),
        inter_node=Link(bandwidth_bytes_per_s=bandwidth, latency_s=latency_s),
        source="made up",
    )


def model(rng):
    """A tiny model of one to three layers, hybrid and with experts now and then."""
    kinds = [
        LayerKind(
            attention=str(rng.choice(["full", "sliding"])), ffn=str(rng.choice(["dense", "moe"]))
        )
        for _ in range(int(rng.choice([1, 1, 2])))
    ]
    return ModelConfig(
        name="tiny",
        model_type="llama",
        vocab_size=64,
        hidden_size=32,
        layer_kinds=tuple((kinds * 3)[: int(rng.integers(1, 4))]),
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        intermediate_size=64,
        max_position=128,
        sliding_window=8,
        moe=MoeConfig(num_experts=4, experts_per_token=2, intermediate_size=16),
        tie_embeddings=bool(rng.integers(2)),
    )


def problem(seed):
    """(config, cluster, context, SLO, limits, profile) small enough to try every candidate."""
    rng = np.random.default_rng(seed)
    config = model(rng)
    kinds = int(rng.integers(1, 3))
    memory = float(rng.choice([1e9, rng.uniform(3e4, 1.2e5)]))
    inventory = tuple(
        (device(name, rng, memory * rng.uniform(0.7, 1.5)), int(rng.integers(1, 7)))
        for name in ("one", "two")[:kinds]
    )
    limits = SearchLimits(
        tensor_parallel=tuple(sorted({1, int(rng.choice([1, 2]))})),
        max_devices=int(rng.integers(2, 9)),
        max_groups=int(rng.integers(1, 4)),
        max_replicas=int(rng.integers(1, 4)),
        max_microbatches=int(rng.integers(1, 4)),
        batches=tuple(int(b) for b in rng.choice([2, 3, 4, 6, 8, 12], 2, replace=False)),
        offsets=bool(rng.integers(2)),
        expert_parallel=bool(rng.integers(2)),
        attention_data_parallel=bool(rng.integers(2)),
    )
    profile = FakeProfile(seed, stage_overhead_s=float(rng.choice([0.0, 2e-5])))
    slo_s = float(rng.choice([1.0, rng.uniform(2e-4, 4e-3)]))
    return config, Cluster(devices=inventory), int(rng.integers(4, 40)), slo_s, limits, profile
