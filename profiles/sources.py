"""Which published measurements the shipped profile is built from, and why those.

All come from ``aiconfigurator-core`` (NVIDIA, Apache-2.0): latencies NVIDIA measured with three
serving frameworks. One framework answers per kernel, the one whose kernels pass a check against
the data sheet's bandwidth and whose grid covers our shapes:

* GEMM: vLLM 0.24.0 (plain cuBLAS through torch); on A100 its grid is 21 points a side, so
  SGLang 0.5.10 with 74 x 22 x 22.
* attention: SGLang 0.5.14 (FlashAttention 3, FlashInfer); vLLM's window tables are 4 to 5 times too
  slow on L40S. On A100 SGLang's is a slow kernel (52 % of peak) and TensorRT-LLM's exceeds the
  memory's peak in 46 % of its large rows, so vLLM 0.14.0.
* experts, delta net, all-reduce: SGLang (fused MoE in Triton; CUDA-graph all-reduce).
"""

from __future__ import annotations

from dataclasses import dataclass

from weavejax.profiles.schema import LinkFit

ATTRIBUTION = (
    "Latencies measured and published by NVIDIA in aiconfigurator-core 0.12.0 "
    "(https://github.com/ai-dynamo/aiconfigurator, Apache-2.0, Copyright (c) 2025-2026 NVIDIA "
    "CORPORATION & AFFILIATES), reduced to compact tables by weavejax.profiles.importer. Figures "
    "only; no code. bfloat16; experts with balanced routing."
)
PROFILE_NAME = "nvidia-measured"
EXPERT_DISTRIBUTION = "balanced"
MAX_EXPERT_WAYS = 8


@dataclass(frozen=True, kw_only=True)
class DeviceSource:
    """One system of the package: its data sheet and the table versions to take."""

    device: str
    system: str
    bandwidth_bytes_per_s: float
    bf16_flop_per_s: float
    link_bandwidth_bytes_per_s: float
    multiprocessors: int
    gemm: str = "vllm/0.24.0"
    attention: str = "sglang/0.5.14"
    other: str = "sglang/0.5.14"
    """experts, delta net and all-reduce"""
    links: tuple[tuple[str, LinkFit], ...] = ()


DEVICES: tuple[DeviceSource, ...] = (
    DeviceSource(
        device="h100-sxm",
        system="h100_sxm",
        bandwidth_bytes_per_s=3350e9,
        bf16_flop_per_s=989e12,
        link_bandwidth_bytes_per_s=450e9,
        multiprocessors=132,
        links=(
            ("inter_node", LinkFit(bandwidth_bytes_per_s=33.6e9, latency_s=18e-6)),
            ("intra_node", LinkFit(bandwidth_bytes_per_s=357e9, latency_s=6e-6)),
        ),
    ),
    DeviceSource(
        device="a100-sxm",
        system="a100_sxm",
        bandwidth_bytes_per_s=2039e9,
        bf16_flop_per_s=312e12,
        link_bandwidth_bytes_per_s=300e9,
        multiprocessors=108,
        gemm="sglang/0.5.10",
        attention="vllm/0.14.0",
        other="sglang/0.5.10",
        links=(
            ("inter_node", LinkFit(bandwidth_bytes_per_s=7.9e9, latency_s=24e-6)),
            ("intra_node", LinkFit(bandwidth_bytes_per_s=210e9, latency_s=10e-6)),
        ),
    ),
    DeviceSource(
        device="l40s",
        system="l40s",
        bandwidth_bytes_per_s=864e9,
        bf16_flop_per_s=362.05e12,
        link_bandwidth_bytes_per_s=32e9,
        multiprocessors=142,
    ),
    DeviceSource(
        device="h200-sxm",
        system="h200_sxm",
        bandwidth_bytes_per_s=4800e9,
        bf16_flop_per_s=989e12,
        link_bandwidth_bytes_per_s=450e9,
        multiprocessors=132,
    ),
    DeviceSource(
        device="b200-sxm",
        system="b200_sxm",
        bandwidth_bytes_per_s=7700e9,
        bf16_flop_per_s=2250e12,
        link_bandwidth_bytes_per_s=900e9,
        multiprocessors=148,
    ),
)
