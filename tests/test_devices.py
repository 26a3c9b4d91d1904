"""Device specs: the shipped facts, the round trip, and what a bad spec says."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weavejax.meshes import (
    PAPER_INTER_NODE,
    DeviceSpec,
    Link,
    MissingPriceError,
    UnknownDeviceError,
    device_spec,
    known_devices,
)

positive = st.floats(min_value=1e-9, max_value=1e18)
links = st.builds(Link, bandwidth_bytes_per_s=positive, latency_s=st.floats(0, 1))
specs = st.builds(
    DeviceSpec,
    name=st.from_regex(r"[a-z0-9][a-z0-9._-]{0,12}", fullmatch=True),
    memory_bytes=positive,
    bandwidth_bytes_per_s=positive,
    bf16_flop_per_s=positive,
    usd_per_hour=st.none() | positive,
    devices_per_node=st.integers(1, 128),
    intra_node=links,
    inter_node=links,
    source=st.text(max_size=20),
)


def test_shipped_devices():
    assert known_devices() == (
        "h100-sxm",
        "h200-sxm",
        "a100-sxm",
        "l40s",
        "h20",
        "b200-sxm",
        "l4",
        "a10g",
        "rtx-4090",
        "rtx-pro-6000",
    )
    for name in known_devices():
        spec = device_spec(name)
        assert spec.name == name
        assert len(spec.source) > 20
        assert spec.inter_node == PAPER_INTER_NODE
        # Machine balance of every accelerator so far: tens to hundreds of FLOP per byte.
        assert 30 < spec.bf16_flop_per_s / spec.bandwidth_bytes_per_s < 500
        assert spec.intra_node.bandwidth_bytes_per_s < spec.bandwidth_bytes_per_s


@pytest.mark.parametrize(
    ("name", "memory_gb", "bandwidth_gb_per_s", "bf16_tflops", "usd_per_hour"),
    [
        ("h100-sxm", 80, 3350, 989, 3.49),
        ("l40s", 48, 864, 362.05, 1.09),
        ("a100-sxm", 80, 2039, 312, 1.74),
    ],
)
def test_table_1_of_the_paper(name, memory_gb, bandwidth_gb_per_s, bf16_tflops, usd_per_hour):
    spec = device_spec(name)
    assert spec.memory_bytes == memory_gb * 1e9
    assert spec.bandwidth_bytes_per_s == bandwidth_gb_per_s * 1e9
    assert spec.bf16_flop_per_s == pytest.approx(bf16_tflops * 1e12)
    assert spec.require_usd_per_hour() == usd_per_hour


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("h100", "h100-sxm"),
        (" H100-SXM ", "h100-sxm"),
        ("a100", "a100-sxm"),
        ("b200", "b200-sxm"),
        ("4090", "rtx-4090"),
        ("rtx_pro_6000_server", "rtx-pro-6000"),
    ],
)
def test_aliases(alias, name):
    assert device_spec(alias).name == name


@given(specs)
def test_round_trip_through_json(spec):
    assert DeviceSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


def test_price_and_network_may_be_absent():
    fields = device_spec("h100").to_dict()
    del fields["usd_per_hour"], fields["inter_node"]
    spec = DeviceSpec.from_dict(fields)
    assert spec.usd_per_hour is None
    assert spec.inter_node == PAPER_INTER_NODE


def test_a_cost_without_a_price_asks_for_one():
    unpriced = [name for name in known_devices() if device_spec(name).usd_per_hour is None]
    assert "h20" in unpriced
    message = r"needs a price for 'h20', and none is known.*with_prices\(\{'h20': <usd"
    with pytest.raises(MissingPriceError, match=message):
        device_spec("h20").require_usd_per_hour()


def test_unknown_device_names_close_matches_and_all_known():
    with pytest.raises(UnknownDeviceError) as caught:
        device_spec("h100-smx")
    message = str(caught.value)
    assert "unknown device 'h100-smx'" in message
    assert "Did you mean h100-sxm" in message
    assert all(name in message for name in known_devices())
    with pytest.raises(UnknownDeviceError, match="'zzz'. Known: h100-sxm"):
        device_spec("zzz")


def test_custom_devices_come_first():
    mine = dataclasses.replace(device_spec("h100"), memory_bytes=94e9)
    assert device_spec("h100-sxm", {"h100-sxm": mine}).memory_bytes == 94e9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "H100 SXM"}, "a device name is lower case"),
        ({"name": "a:b"}, "got 'a:b'"),
        (
            {"memory_bytes": 0.0},
            "device 'h100-sxm': memory_bytes must be positive and finite, got 0.0",
        ),
        ({"bandwidth_bytes_per_s": float("nan")}, "bandwidth_bytes_per_s must be positive and"),
        ({"bf16_flop_per_s": float("inf")}, "bf16_flop_per_s must be positive and finite, got inf"),
        ({"usd_per_hour": -1.0}, "usd_per_hour must be positive and finite, got -1.0"),
        ({"devices_per_node": 0}, "devices_per_node must be a whole number of at least 1, got 0"),
    ],
)
def test_invalid_specs_say_what_is_wrong(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        dataclasses.replace(device_spec("h100"), **change)


@pytest.mark.parametrize(
    ("bandwidth_bytes_per_s", "latency_s", "message"),
    [
        (0.0, 0.0, "a link: bandwidth_bytes_per_s must be positive and finite, got 0.0"),
        (1.0, -1e-6, "a link: latency_s must be finite and at least 0 seconds, got -1e-06"),
    ],
)
def test_invalid_links_say_what_is_wrong(bandwidth_bytes_per_s, latency_s, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Link(bandwidth_bytes_per_s=bandwidth_bytes_per_s, latency_s=latency_s)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"memory_gb": 80},
            "device 'h100-sxm': unknown key 'memory_gb'; known: name, memory_bytes",
        ),
        ({"memory_bytes": "lots"}, "device 'h100-sxm': memory_bytes must be a number, got 'lots'"),
        (
            {"devices_per_node": 1.5},
            "devices_per_node must be a whole number of at least 1, got 1.5",
        ),
        ({"intra_node": 5}, "device 'h100-sxm': intra_node must be a mapping, got 5"),
        ({"intra_node": {"latency_s": 0}}, "intra_node: missing bandwidth_bytes_per_s"),
    ],
)
def test_invalid_fields_say_where(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        DeviceSpec.from_dict({**device_spec("h100").to_dict(), **change})


def test_missing_fields_are_named():
    with pytest.raises(ValueError, match="device 'x': missing memory_bytes, bandwidth_bytes"):
        DeviceSpec.from_dict({"name": "x"})
    with pytest.raises(ValueError, match="a device must be a mapping, got 3"):
        DeviceSpec.from_dict(3)  # type: ignore[arg-type]


def test_describing_devices_does_not_import_jax():
    # The package's own __init__ is the whole public interface, JAX included; it is left out here.
    code = """
import importlib.util, sys
spec = importlib.util.find_spec("weavejax")
sys.modules["weavejax"] = importlib.util.module_from_spec(spec)
import weavejax.meshes
print(weavejax.meshes.Cluster.parse("h100:2").device_count, "jax" in sys.modules)
"""
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert result.stdout.split() == ["2", "False"]
