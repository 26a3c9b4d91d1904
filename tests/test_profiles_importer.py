"""The importer on a small synthetic tree of Parquet files."""

from __future__ import annotations

import numpy as np
import pytest

from weavejax.profiles.importer import build, main, read_tables
from weavejax.profiles.sources import DEVICES

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

H100 = next(source for source in DEVICES if source.device == "h100-sxm")


def write(root, family, version, name, rows):
    folder = root / "data" / H100.system / family / version
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")


def gemm_rows():
    return [
        {"gemm_dtype": dtype, "m": m, "n": n, "k": k, "latency": scale * (m + n + k) * 1e-3}
        for dtype, scale in (("bfloat16", 1.0), ("fp8", 0.5))
        for m in (1, 4)
        for n in (64, 128)
        for k in (64, 256)
        if (m, n, k) != (4, 128, 256)
    ]


def attention_rows():
    return [
        {
            "kernel_source": kernel,
            "batch_size": batch,
            "num_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "attn_dtype": "bfloat16",
            "kv_cache_dtype": cache,
            "step": step,
            "window_size": 0,
            "latency": latency * batch,
        }
        for kernel, cache, latency in (
            ("slow", "bfloat16", 3.0),
            ("fast", "bfloat16", 2.0),
            ("fast", "fp8", 1.0),
        )
        for batch in (1, 2)
        for step in (127, 1023)
    ]


def delta_rows():
    shape = {"num_k_heads": 16, "head_k_dim": 128, "num_v_heads": 32, "head_v_dim": 128}
    return [
        {"phase": phase, "batch_size": batch, "kernel_source": kernel, "latency": ms, **shape}
        for phase in ("context", "generation")
        for batch in (1, 2)
        for kernel, ms in (
            ("causal_conv1d_update", 0.002),
            ("fused_recurrent_gated_delta_rule", 0.005 * batch),
        )
    ]


def all_reduce_rows():
    return [
        {
            "kernel_source": f"SGLang_CustomAllReduce_{mode}",
            "allreduce_dtype": "bfloat16",
            "num_gpus": 2,
            "message_size": size,
            "latency": ms * (30.0 if size == 512 else 1.0),
        }
        for mode, ms in (("eager", 0.02), ("graph", 0.003))
        for size in (128, 256, 512, 1024)
    ]


def expert_rows():
    return [
        {
            "moe_dtype": "bfloat16",
            "distribution": distribution,
            "num_tokens": tokens,
            "hidden_size": 4096,
            "inter_size": 1536,
            "topk": 8,
            "num_experts": 128,
            "moe_tp_size": tensor,
            "moe_ep_size": expert,
            "latency": 0.1 * tokens,
        }
        for distribution in ("balanced", "power_law_1.2")
        for tokens in (1, 8)
        for tensor, expert in ((1, 1), (1, 8), (2, 1), (2, 4), (1, 16))
    ]


@pytest.fixture
def tree(tmp_path):
    write(tmp_path, "gemm", H100.gemm, "gemm_perf", gemm_rows())
    write(tmp_path, "attention", H100.attention, "generation_attention_perf", attention_rows())
    write(tmp_path, "linear_attention", H100.other, "gdn_perf", delta_rows())
    write(tmp_path, "comm", H100.other, "custom_allreduce_perf", all_reduce_rows())
    write(tmp_path, "moe", H100.other, "moe_perf", expert_rows())
    return tmp_path


def test_tables_hold_what_was_measured(tree):
    tables = read_tables(tree, H100)
    gemm = tables["gemm"]
    assert gemm.time_s.shape == (1, 2, 2, 2)
    want = np.array([[[(m + n + k) * 1e-6 for k in (64, 256)] for n in (64, 128)] for m in (1, 4)])
    want[1, 1, 1] = np.nan
    np.testing.assert_allclose(gemm.time_s[0], want, rtol=1.3e-4)
    assert gemm.origin == "vllm/0.24.0 gemm_perf on h100_sxm"

    attention = tables["attention"]
    assert attention.shapes.tolist() == [[16, 2, 256, 0]]
    assert [line.tolist() for line in attention.points] == [[1.0, 2.0], [128.0, 1024.0]]
    np.testing.assert_allclose(attention.time_s[0], [[2e-3, 2e-3], [4e-3, 4e-3]], rtol=1.3e-4)


def test_delta_net_adds_convolution_and_recurrence(tree):
    delta = read_tables(tree, H100)["delta_net"]
    np.testing.assert_allclose(delta.time_s, [[7e-6, 12e-6]], rtol=1.3e-4)


def test_all_reduce_takes_graph_kernels_and_drops_spikes(tree):
    reduce = read_tables(tree, H100)["all_reduce"]
    assert reduce.shapes.tolist() == [[2]]
    np.testing.assert_allclose(reduce.time_s, [[3e-6, 3e-6, np.nan, 3e-6]], rtol=1.3e-4)


def test_experts_keep_balanced_routing_and_one_way_cuts(tree):
    experts = read_tables(tree, H100)["experts"]
    assert experts.shapes[:, 4:].tolist() == [[1, 1], [1, 8], [2, 1]]


def test_build_names_and_attributes(tree):
    data = build(tree, [H100], fit=False)
    assert data.name == "nvidia-measured"
    assert "NVIDIA" in data.attribution
    device = data.devices["h100-sxm"]
    assert device.attributes["experts_distribution"] == "balanced"
    assert device.links["inter_node"].bandwidth_bytes_per_s == 33.6e9


def test_a_tree_without_the_system_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no tables of 'h100_sxm' under .* expected data/"):
        build(tmp_path, [H100])


def test_the_command_needs_a_place_to_write():
    with pytest.raises(SystemExit):
        main([])
