"""Operators from kernels: composition, tags, parallelism, transfers and unknown devices."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weavejax.meshes import DeviceSpec, Link, UnknownDeviceError, device_spec
from weavejax.models import operator_sequence, preset_config
from weavejax.plan import DeviceGroup
from weavejax.profiles import ProfileError, load_profile
from weavejax.profiles.estimator import TAG_SHARE
from weavejax.profiles.paper_points import format_points, paper_points
from weavejax.profiles.schema import DERIVED, SOURCES

PROFILE = load_profile()
MODELS = ("gemma-3-27b", "qwen3-next-80b-a3b", "qwen3-235b-a22b", "gpt-oss-120b")


def operators(model):
    """One operator of every kind and layer kind."""
    return list({op.signature: op for op in operator_sequence(preset_config(model))}.values())


OPERATORS = {model: operators(model) for model in MODELS}


def find(model, kind, attention=None):
    return next(
        op
        for op in OPERATORS[model]
        if op.kind == kind and (attention is None or op.layer_kind.attention == attention)
    )


def group(device="h100-sxm", tp=1, ep=1, adp=1):
    return DeviceGroup(
        device=device,
        tensor_parallel=tp,
        expert_parallel=ep,
        attention_data_parallel=adp,
        resident_batch=8 * adp,
    )


parallelisms = st.sampled_from(
    [(tp, ep, adp) for tp in (1, 2, 4, 8) for ep in {1, tp} for adp in {1, tp}]
)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(MODELS),
    st.sampled_from(["h100-sxm", "a100-sxm", "l40s", "h200-sxm", "b200-sxm", "h20", "rtx-4090"]),
    parallelisms,
    st.integers(1, 200_000),
    st.lists(st.integers(1, 4096), min_size=1, max_size=5),
)
def test_one_call_for_many_batches_is_many_calls(model, device, ways, context, batches):
    where = group(device, *ways)
    for operator in OPERATORS[model]:
        times_s, codes = PROFILE.operator_times_s(operator, where, np.array(batches), context)
        assert (times_s > 0).all() and np.isfinite(times_s).all()
        for batch, time_s, code in zip(batches, times_s, codes, strict=True):
            one = PROFILE.operator_time_s(operator, where, batch, context)
            assert one.time_s == pytest.approx(time_s, rel=1e-12)
            assert one.source == SOURCES[code]
            parts = PROFILE.operator_breakdown(operator, where, batch, context)
            assert sum(part.time_s for part in parts) == pytest.approx(time_s, rel=1e-12)
            heavy = [p.source for p in parts if p.time_s >= TAG_SHARE * one.time_s]
            assert one.source == max(heavy, key=SOURCES.index)


@pytest.mark.parametrize("device", ["h20", "l4", "rtx-4090"])
def test_unmeasured_devices_are_answered_analytically(device):
    for operator in OPERATORS["gemma-3-27b"]:
        assert PROFILE.operator_time_s(operator, group(device), 8, 4096).source == "analytic"


def test_an_analytic_gemm_is_the_roofline():
    parts = PROFILE.operator_breakdown(find("gemma-3-27b", "ffn"), group("h20"), 1, 4096)
    gate_up = next(part for part in parts if part.kernel == "gate_up")
    traffic = 2 * (5376 * 43008 + 5376 + 43008)
    assert gate_up.time_s == pytest.approx(traffic / (4000e9 * 0.65), rel=1e-9)


def test_measured_shapes_are_tagged_measured():
    for model, attention, tp in (
        ("gemma-3-27b", "full", 2),
        ("qwen3-next-80b-a3b", "full", 1),
        ("gpt-oss-120b", "sliding", 1),
        ("qwen3-next-80b-a3b", "linear", 1),
    ):
        operator = find(model, "attn_core", attention)
        assert PROFILE.operator_time_s(operator, group(tp=tp), 8, 8192).source == "measured"
    experts = find("qwen3-235b-a22b", "ffn")
    for device in PROFILE.data.devices:
        found = PROFILE.operator_time_s(experts, group(device, tp=8, ep=8), 32, 8192)
        assert found.source == "measured"


def test_two_head_groups_are_two_rows():
    """Gemma at TP 1 (32 query, 16 key/value heads) was not measured; at TP 2 it was."""
    core = find("gemma-3-27b", "attn_core", "full")
    whole = PROFILE.operator_time_s(core, group(tp=1), 4, 8192)
    half = PROFILE.operator_time_s(core, group(tp=2), 8, 8192)
    assert whole.time_s == half.time_s
    assert (whole.source, half.source) == ("derived", "measured")


def test_an_unmeasured_window_is_full_attention_at_the_window():
    sliding = find("gemma-3-27b", "attn_core", "sliding")
    full = find("gemma-3-27b", "attn_core", "full")
    for context in (4096, 32_768, 131_072):
        window = PROFILE.operator_time_s(sliding, group(tp=2), 16, context)
        assert window.time_s == PROFILE.operator_time_s(full, group(tp=2), 16, 1024).time_s
        assert window.source == "derived"
    short = PROFILE.operator_time_s(sliding, group(tp=2), 16, 512)
    assert short == PROFILE.operator_time_s(full, group(tp=2), 16, 512)


def test_an_unmeasured_head_dim_is_scaled_by_the_model():
    """A100 attention was measured at head_dim 128 only; 256 costs about twice the bytes."""
    lookup = PROFILE.lookup("a100-sxm")
    batch = np.array([64.0])
    wide, code = lookup.attention((16, 2, 256, 0), batch, 16_384)
    known, _ = lookup.attention((16, 2, 128, 0), batch, 16_384)
    assert wide == pytest.approx(2 * known, rel=0.05)
    assert code.tolist() == [DERIVED]


def test_tensor_parallel_adds_an_all_reduce():
    out = find("gemma-3-27b", "attn_out")
    parts = {p.kernel: p for p in PROFILE.operator_breakdown(out, group(tp=4), 64, 4096)}
    times_s, _ = PROFILE.lookup("h100-sxm").plain("all_reduce", (4,), np.array([64 * 5376.0]))
    assert parts["all_reduce"].time_s == times_s[0]
    alone = PROFILE.operator_breakdown(out, group(tp=1), 64, 4096)
    assert "all_reduce" not in {part.kernel for part in alone}


def test_data_parallel_attention_cuts_rows_and_gathers():
    core, out = (find("gemma-3-27b", kind) for kind in ("attn_core", "attn_out"))
    shared = PROFILE.operator_time_s(core, group(tp=4, adp=4), 64, 8192)
    assert shared == PROFILE.operator_time_s(core, group(tp=1), 16, 8192)
    assert PROFILE.operator_time_s(core, group(tp=4, adp=4), 65, 8192) == (
        PROFILE.operator_time_s(core, group(tp=1), 17, 8192)
    )
    parts = {p.kernel: p for p in PROFILE.operator_breakdown(out, group(tp=4, adp=4), 64, 8192)}
    whole = {p.kernel: p for p in PROFILE.operator_breakdown(out, group(tp=4), 64, 8192)}
    assert parts["gather_scatter"].time_s == pytest.approx(0.5 * whole["all_reduce"].time_s)


def test_transfers_follow_the_slower_end():
    h100, l40s = device_spec("h100-sxm"), device_spec("l40s")
    move = PROFILE.transfer_time_s(
        h100, l40s, sent_bytes=64e6, received_bytes=32e6, source_links=4, destination_links=1
    )
    assert move.time_s == pytest.approx(20e-6 + 32e6 / 32e9)
    assert move.source == "analytic"
    inside = PROFILE.transfer_time_s(h100, h100, sent_bytes=357e6, same_node=True)
    assert inside.time_s == pytest.approx(6e-6 + 1e-3)
    assert inside.source == "measured"
    assert PROFILE.transfer_time_s(h100, h100, sent_bytes=0).time_s == 20e-6


@pytest.mark.parametrize("change", [{"sent_bytes": -1.0}, {"source_links": 0}])
def test_bad_transfers_are_refused(change):
    spec = device_spec("l40s")
    with pytest.raises(ValueError, match="bytes >= 0 and links >= 1, got"):
        PROFILE.transfer_time_s(spec, spec, **{"sent_bytes": 1.0, **change})


@pytest.mark.parametrize("batches, context", [([0], 128), ([], 128), ([1], 0)])
def test_bad_sizes_are_refused(batches, context):
    with pytest.raises(ValueError, match="batches and a context of at least 1, got"):
        PROFILE.operator_times_s(OPERATORS["gemma-3-27b"][1], group(), np.array(batches), context)


def test_custom_devices_can_be_added():
    spec = DeviceSpec(
        name="my-chip",
        memory_bytes=64e9,
        bandwidth_bytes_per_s=1e12,
        bf16_flop_per_s=1e14,
        usd_per_hour=1.0,
        devices_per_node=4,
        intra_node=Link(bandwidth_bytes_per_s=5e10, latency_s=5e-6),
        source="test",
    )
    core = find("gemma-3-27b", "attn_core", "full")
    with pytest.raises(UnknownDeviceError, match="my-chip"):
        PROFILE.operator_time_s(core, group("my-chip"), 8, 8192)
    known = PROFILE.with_devices({"my-chip": spec})
    assert known.hash == PROFILE.hash
    found = known.operator_time_s(core, group("my-chip"), 8, 8192)
    cache_bytes = 2 * 2 * 8 * 8192 * 16 * 128
    assert found.time_s == pytest.approx(cache_bytes / (1e12 * 0.85), rel=0.01)
    assert found.source == "analytic"


def test_aliases_reach_the_tables():
    assert PROFILE.lookup("h100").device.device == "h100-sxm"


def test_unknown_profiles_are_refused():
    with pytest.raises(ProfileError, match="no profile 'nothing-here': give 'nvidia-measured'"):
        load_profile("nothing-here")


def test_the_papers_points_have_their_parts():
    full, linear = paper_points(PROFILE)
    for point in (full, linear):
        assert point.predicted_s == pytest.approx(sum(k.time_s for k in point.kernels))
        assert point.traffic_floor_s < point.predicted_s < point.paper_s
    assert "paper   700 us" in format_points((full, linear))


def test_importing_profiles_does_not_import_jax():
    """Neither this package nor what it builds on; the top package may (it holds the engine)."""
    code = (
        "import importlib.util, sys, types\n"
        "top = types.ModuleType('weavejax')\n"
        "top.__path__ = list(importlib.util.find_spec('weavejax').submodule_search_locations)\n"
        "sys.modules['weavejax'] = top\n"
        "import weavejax.profiles, weavejax.profiles.paper_points\n"
        "print('jax' in sys.modules, 'optax' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
