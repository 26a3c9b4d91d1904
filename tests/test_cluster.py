"""Clusters: inventory strings, files, overrides, and the link between two devices."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weavejax.meshes import (
    Cluster,
    Link,
    MissingPriceError,
    UnknownDeviceError,
    as_cluster,
    device_spec,
    known_devices,
    link_between,
)

names = st.sampled_from(known_devices())
inventories = st.dictionaries(names, st.integers(1, 4096), min_size=1)

FILE = """
inventory: {h100: 16, lab-gpu: 4}
usd_per_hour: {h100-sxm: 2.5}
network: {bandwidth_bytes_per_s: 50e9}
devices:
  lab-gpu:
    memory_bytes: 16e9
    bandwidth_bytes_per_s: 4.0e+11
    bf16_flop_per_s: 50e12
    devices_per_node: 4
    intra_node: {bandwidth_bytes_per_s: 12e9, latency_s: 15e-6}
"""


def cluster_of(inventory: dict[str, int]) -> Cluster:
    return Cluster.parse(",".join(f"{name}:{count}" for name, count in inventory.items()))


@given(inventories)
def test_parse_keeps_order_counts_and_specs(inventory):
    cluster = cluster_of(inventory)
    assert cluster.names == tuple(inventory)
    assert cluster.device_count == sum(inventory.values())
    for name, count in inventory.items():
        assert cluster.count(name) == count
        assert cluster.device(name) == device_spec(name)


@given(inventories)
def test_round_trip_through_json_is_exact_and_stable(inventory):
    cluster = cluster_of(inventory).with_network(latency_s=1.3e-5)
    text = json.dumps(cluster.to_dict())
    again = Cluster.from_dict(json.loads(text))
    assert again == cluster
    assert json.dumps(again.to_dict()) == text


def test_parse_takes_spaces_and_aliases():
    assert Cluster.parse(" h100 : 2 , L40S:1") == Cluster.parse("h100-sxm:2,l40s:1")
    assert Cluster.parse("h100:2").count("h100") == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "an inventory is 'name:count' pairs"),
        ("h100", "such as 'h100-sxm:16,l40s:16'; got 'h100' in 'h100'"),
        ("h100:2,", "got '' in 'h100:2,'"),
        ("h100:0", "the count of 'h100-sxm' must be a whole number of at least 1, got '0'"),
        ("h100:-4", "must be a whole number of at least 1, got '-4'"),
        ("h100:1.5", "must be a whole number of at least 1, got '1.5'"),
        ("h100:many", "the count of 'h100-sxm' must be a number, got 'many'"),
        ("h100:2,h100-sxm:3", "'h100-sxm' is listed 2 times; add the counts up"),
        ("h10:2", "unknown device 'h10'"),
    ],
)
def test_bad_inventories_say_what_is_wrong(text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Cluster.parse(text)


def test_numbers_of_numpy_are_saved_like_python_s():
    plain = Cluster(devices=((device_spec("l4"), 3),))
    given = Cluster(devices=((device_spec("l4"), np.int64(3)),))
    assert repr(given) == repr(plain) and json.dumps(given.to_dict()) == json.dumps(plain.to_dict())
    for number in (np.int64(2), np.float32(2), 2):
        changed = given.with_prices({"l4": number}).with_network(latency_s=number)
        assert repr(changed) == repr(plain.with_prices({"l4": 2.0}).with_network(latency_s=2.0))
        assert Cluster.from_dict(json.loads(json.dumps(changed.to_dict()))) == changed
    spec = dataclasses.replace(device_spec("l4"), devices_per_node=np.int8(4))
    assert repr(spec) == repr(dataclasses.replace(device_spec("l4"), devices_per_node=4))
    with pytest.raises(ValueError, match="usd_per_hour must be a number, got '2'"):
        plain.with_prices({"l4": "2"})


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ((), "a cluster needs at least one device, got an empty inventory"),
        (
            ((device_spec("l4"), 0),),
            "the count of 'l4' must be a whole number of at least 1, got 0",
        ),
        (((device_spec("l4"), True),), "whole number of at least 1, got True"),
    ],
)
def test_bad_clusters_say_what_is_wrong(devices, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Cluster(devices=devices)


def test_a_device_the_cluster_lacks_is_named_with_those_it_has():
    cluster = Cluster.parse("h100:2,l4:1")
    with pytest.raises(UnknownDeviceError, match="no 'a100-sxm'; it has h100-sxm, l4"):
        cluster.device("a100")
    with pytest.raises(UnknownDeviceError, match="unknown device 'tpu'"):
        cluster.count("tpu")


def test_prices_change_only_what_they_name():
    cluster = Cluster.parse("h100:2,h200:2")
    with pytest.raises(MissingPriceError):
        cluster.device("h200").require_usd_per_hour()
    priced = cluster.with_prices({"h200": 4.25})
    assert priced.device("h200").require_usd_per_hour() == 4.25
    assert priced.device("h100") == cluster.device("h100")
    with pytest.raises(UnknownDeviceError, match="the cluster has no 'l4'"):
        cluster.with_prices({"l4": 1.0})
    with pytest.raises(ValueError, match="usd_per_hour must be positive and finite, got 0"):
        cluster.with_prices({"h200": 0})


def test_network_changes_every_inter_node_link_and_nothing_else():
    cluster = Cluster.parse("h100:2,l40s:2")
    slow = cluster.with_network(bandwidth_bytes_per_s=1e9)
    for name in cluster.names:
        assert slow.device(name).inter_node == Link(bandwidth_bytes_per_s=1e9, latency_s=20e-6)
        assert slow.device(name).intra_node == cluster.device(name).intra_node
    far = slow.with_network(latency_s=500e-6).device("h100").inter_node
    assert far == Link(bandwidth_bytes_per_s=1e9, latency_s=500e-6)
    assert cluster.with_network() == cluster


@given(names, names, st.booleans())
def test_the_slower_end_of_a_link_decides(source, destination, same_node):
    ends = [device_spec(source), device_spec(destination)]
    link = link_between(*ends, same_node=same_node)
    sides = [end.intra_node if same_node else end.inter_node for end in ends]
    assert all(link.bandwidth_bytes_per_s <= side.bandwidth_bytes_per_s for side in sides)
    assert all(link.latency_s >= side.latency_s for side in sides)
    assert link.bandwidth_bytes_per_s in [side.bandwidth_bytes_per_s for side in sides]
    assert link.latency_s in [side.latency_s for side in sides]
    assert link == link_between(*reversed(ends), same_node=same_node)


def test_nvlink_inside_a_node_and_network_between_nodes():
    h100 = device_spec("h100")
    inside = link_between(h100, h100, same_node=True)
    assert inside == Link(bandwidth_bytes_per_s=357e9, latency_s=6e-6)
    assert link_between(h100, h100, same_node=False).bandwidth_bytes_per_s == 32e9


def test_load_yaml(tmp_path):
    path = tmp_path / "lab.yaml"
    path.write_text(FILE)
    cluster = Cluster.load(path)
    assert cluster.names == ("h100-sxm", "lab-gpu")
    assert cluster.device("h100").usd_per_hour == 2.5
    lab = cluster.device("lab-gpu")
    assert (lab.memory_bytes, lab.devices_per_node, lab.usd_per_hour) == (16e9, 4, None)
    assert lab.intra_node == Link(bandwidth_bytes_per_s=12e9, latency_s=15e-6)
    assert lab.inter_node == Link(bandwidth_bytes_per_s=50e9, latency_s=20e-6)
    assert lab.source == "cluster file lab.yaml"
    assert as_cluster(path) == as_cluster(str(path)) == as_cluster(cluster) == cluster


def test_load_json_in_either_form(tmp_path):
    cluster = Cluster.parse("l40s:8,h100:4")
    short, full = tmp_path / "short.json", tmp_path / "full.json"
    short.write_text(json.dumps({"inventory": "l40s:8,h100:4"}))
    full.write_text(json.dumps(cluster.to_dict()))
    assert Cluster.load(short) == Cluster.load(full) == as_cluster("l40s:8,h100:4") == cluster


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.toml", "", "expected a .json, .yaml or .yml file, got suffix '.toml'"),
        ("c.json", "{", "not valid JSON"),
        ("c.yaml", "a: [", "not valid YAML"),
        ("c.yaml", "- h100", "the top level must be a mapping, got list"),
        ("c.yaml", "{}", "cluster: missing inventory"),
        ("c.yaml", "{inventory: 'h100:1', prices: {}}", "unknown key 'prices'; known: inventory"),
        ("c.yaml", "{inventory: [h100]}", "'inventory' must be a string or a mapping"),
        ("c.yaml", "{inventory: 'h100:1', network: 5}", "'network' must be a mapping, got 5"),
        ("c.yaml", "{inventory: 'h100:1', network: {mtu: 5}}", "network: unknown key 'mtu'"),
        ("c.yaml", "{inventory: 'h100:1', usd_per_hour: {h100: x}}", "usd_per_hour of 'h100' must"),
        ("c.yaml", "{inventory: 'x:1', devices: {x: 4}}", "device 'x' must be a mapping of fields"),
        ("c.yaml", "{inventory: 'x:1', devices: {x: {}}}", "device 'x': missing memory_bytes"),
        ("c.yaml", "{inventory: 'h10:1'}", "unknown device 'h10'"),
        ("c.json", '{"format": "other/1"}', "'format': 'weavejax.cluster/1', got 'other/1'"),
        ("c.json", '{"format": "weavejax.cluster/1", "devices": 3}', "'devices' must be a list"),
        ("c.json", '{"format": "weavejax.cluster/1", "devices": [3]}', "got 3"),
        (
            "c.json",
            '{"format": "weavejax.cluster/1", "devices": [{"name": "x"}]}',
            "the count of 'x' must be a number, got None",
        ),
    ],
)
def test_bad_files_name_the_file_and_the_fault(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        Cluster.load(path)
    assert str(path) in str(caught.value)
