"""Profile files: round trip, stable hash, clear refusals, and the schema's own rules."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest

from weavejax.profiles import (
    DeviceProfile,
    Efficiency,
    KernelTable,
    LinkFit,
    Profile,
    ProfileData,
    ProfileError,
    Warp,
    load_profile,
)
from weavejax.profiles.files import content_hash, save_data


def small_table(**changes) -> KernelTable:
    fields = {
        "kind": "attention",
        "shapes": np.array([[16, 2, 256, 0], [8, 1, 256, 0]]),
        "points": (np.array([1.0, 2.0]), np.array([128.0, 256.0, 512.0])),
        "time_s": np.array([[[1.0, 2, 3], [2, 3, np.nan]], [[1, 1, 1], [1, 2, 2]]]) * 2.0**-17,
        "dtype": "float32",
        "origin": "a test",
    }
    return KernelTable(**{**fields, **changes})


def small_data(**changes) -> ProfileData:
    device = DeviceProfile(
        device="cpu",
        bandwidth_bytes_per_s=2e10,
        bf16_flop_per_s=1e11,
        link_bandwidth_bytes_per_s=1e10,
        multiprocessors=2,
        element_bytes=4,
        tables={"attention": small_table(spread=np.full((2, 2, 3), 0.0625))},
        efficiencies={"gemm": Efficiency(floor_s=1e-6, bandwidth=0.5, flop=0.25)},
        warps={"attention": Warp(floor_s=1e-6, bandwidth=0.5, slopes=(0.25, 0.5))},
        links={
            "inter_node": LinkFit(bandwidth_bytes_per_s=1e9, latency_s=1e-4),
            "between_processes": LinkFit(bandwidth_bytes_per_s=1e9, latency_s=1e-4, busy_s=2e-5),
        },
        attributes={"jax": "0.10.2", "date": "2026-01-01"},
    )
    return ProfileData(name="local", devices={"cpu": dataclasses.replace(device, **changes)})


def test_round_trip_keeps_everything(tmp_path):
    profile = Profile(small_data())
    profile.save(tmp_path / "p.npz")
    again = Profile.load(tmp_path / "p.npz")
    assert again.hash == profile.hash
    assert again.name == "local"
    before, after = profile.data.devices["cpu"], again.data.devices["cpu"]
    for name in ("efficiencies", "warps", "links", "attributes", "element_bytes"):
        assert getattr(after, name) == getattr(before, name)
    old, new = before.tables["attention"], after.tables["attention"]
    np.testing.assert_array_equal(new.time_s, old.time_s)
    np.testing.assert_array_equal(new.shapes, old.shapes)
    assert new.spread is not None and (new.spread == 0.0625).all()
    assert (new.dtype, new.origin) == ("float32", "a test")


def test_the_shipped_profile_survives_a_round_trip(tmp_path):
    shipped = load_profile()
    shipped.save(tmp_path / "copy.npz")
    assert load_profile(str(tmp_path / "copy.npz")).hash == shipped.hash
    assert "NVIDIA" in shipped.data.attribution and "Apache-2.0" in shipped.data.attribution
    assert set(shipped.data.devices) == {"h100-sxm", "a100-sxm", "l40s", "h200-sxm", "b200-sxm"}
    assert (tmp_path / "copy.npz").stat().st_size < 3e6


def test_the_hash_depends_on_content_alone():
    data = small_data()
    assert content_hash(data) == content_hash(small_data())
    reordered = dataclasses.replace(
        data,
        devices={
            "cpu": dataclasses.replace(
                data.devices["cpu"], attributes={"date": "2026-01-01", "jax": "0.10.2"}
            )
        },
    )
    assert content_hash(reordered) == content_hash(data)
    assert len(content_hash(data)) == hashlib.sha256().digest_size * 2


@pytest.mark.parametrize(
    "change",
    [
        {"element_bytes": 2},
        {"attributes": {}},
        {"warps": {}},
        {"tables": {"attention": small_table(origin="elsewhere")}},
        {
            "tables": {
                "attention": small_table(
                    points=(np.ones(1), np.array([1.0, 2.0, 3.0])), time_s=np.ones((2, 1, 3))
                )
            }
        },
    ],
)
def test_any_change_changes_the_hash(change):
    assert content_hash(small_data(**change)) != content_hash(small_data())


def test_missing_and_foreign_files_are_refused(tmp_path):
    with pytest.raises(ProfileError, match="'.*none.npz' does not exist"):
        Profile.load(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("not an archive")
    with pytest.raises(ProfileError, match="is not an .npz archive"):
        Profile.load(tmp_path / "text.npz")
    np.savez(tmp_path / "other.npz", weights=np.ones(3))
    with pytest.raises(ProfileError, match="not a weavejax.profile/1 file: KeyError"):
        Profile.load(tmp_path / "other.npz")
    header = np.frombuffer(b'{"format": "weavejax.profile/9"}', dtype=np.uint8)
    np.savez(tmp_path / "later.npz", header=header)
    with pytest.raises(ProfileError, match="a profile has \"format\": 'weavejax.profile/1', got"):
        Profile.load(tmp_path / "later.npz")


def test_a_truncated_file_is_refused(tmp_path):
    save_data(small_data(), tmp_path / "whole.npz")
    whole = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ProfileError, match="is not an .npz archive"):
        Profile.load(tmp_path / "cut.npz")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"kind": "convolution"}, "a kernel table is one of gemm, .*, got 'convolution'"),
        ({"shapes": np.array([[1, 2]])}, "attention shapes have 4 columns"),
        ({"time_s": np.ones((2, 2))}, r"have shape \(shapes, batch, context\) = \(2, 2, 3\), got"),
        (
            {"points": (np.array([2.0, 1.0]), np.array([1.0, 2.0, 3.0]))},
            "axis batch must be positive and rise",
        ),
        ({"time_s": np.zeros((2, 2, 3))}, r"must be positive seconds, got 0.0 at position \[0, 0"),
    ],
)
def test_tables_state_the_rule_they_break(changes, message):
    with pytest.raises(ValueError, match=message):
        small_table(**changes)
