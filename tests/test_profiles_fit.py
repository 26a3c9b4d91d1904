"""Fitting recovers planted parameters, and never makes interpolation worse than plain."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from weavejax.profiles import DeviceProfile, Efficiency, KernelTable
from weavejax.profiles.analytic import analytic_time_s
from weavejax.profiles.fit import fit_device, fit_efficiency, fit_warp, residuals, summary
from weavejax.profiles.holdout import holdout_row

DEVICE = DeviceProfile(
    device="planted",
    bandwidth_bytes_per_s=1e12,
    bf16_flop_per_s=2e14,
    link_bandwidth_bytes_per_s=1e11,
    multiprocessors=100,
)
PLANTED = Efficiency(floor_s=6e-6, bandwidth=0.62, flop=0.41)
SHAPE = (16, 32, 128, 128)


def planted_gemm(noise: float = 0.0) -> KernelTable:
    m, n, k = (2.0 ** np.arange(0, 13, 1.5), 2.0 ** np.arange(6, 14), 2.0 ** np.arange(6, 14))
    planted = dataclasses.replace(DEVICE, efficiencies={"gemm": PLANTED})
    time_s = analytic_time_s(planted, "gemm", (), np.meshgrid(m, n, k, indexing="ij"))
    time_s = time_s * np.exp(noise * np.random.default_rng(0).standard_normal(time_s.shape))
    return KernelTable(
        kind="gemm",
        shapes=np.zeros((1, 0), int),
        points=(m, n, k),
        time_s=time_s[None],
        dtype="bfloat16",
        origin="planted",
    )


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_the_roofline_fit_recovers_planted_parameters(noise):
    found = fit_efficiency(DEVICE, planted_gemm(noise))
    assert found.floor_s == pytest.approx(PLANTED.floor_s, rel=0.03)
    assert found.bandwidth == pytest.approx(PLANTED.bandwidth, rel=0.03)
    assert found.flop == pytest.approx(PLANTED.flop, rel=0.03)


def test_residuals_are_those_of_the_fit():
    table = planted_gemm()
    exact = dataclasses.replace(DEVICE, tables={"gemm": table}, efficiencies={"gemm": PLANTED})
    assert max(residuals(exact)["gemm"]) < 1e-12
    half = dataclasses.replace(PLANTED, floor_s=2 * PLANTED.floor_s)
    doubled = dataclasses.replace(exact, efficiencies={"gemm": half})
    assert residuals(doubled)["gemm"][1] == pytest.approx(1.0)
    assert "floor 6.0 us, bandwidth 0.62, FLOP 0.41" in summary(exact)["gemm"]


@pytest.mark.slow
def test_a_fitted_warp_finds_the_planted_knee():
    """Flat until the traffic leaves the launch cost: log-linear misses the knee, the warp not."""
    batch = 2.0 ** np.arange(0, 12)
    time_s = 7e-6 + batch * 2.0e-7
    table = KernelTable(
        kind="delta_net",
        shapes=np.array([SHAPE]),
        points=(batch,),
        time_s=time_s[None],
        dtype="bfloat16",
        origin="planted",
    )
    warp = fit_warp(DEVICE, table)
    row = holdout_row(dataclasses.replace(DEVICE, warps={"delta_net": warp}), table, 0)
    assert row.better
    assert row.median < 0.2 * row.plain_median


@pytest.mark.slow
def test_fit_device_fits_every_table():
    batch = 2.0 ** np.arange(0, 10)
    table = KernelTable(
        kind="delta_net",
        shapes=np.array([SHAPE]),
        points=(batch,),
        time_s=(5e-6 + batch * 1e-6)[None],
        dtype="bfloat16",
        origin="planted",
    )
    device = fit_device(dataclasses.replace(DEVICE, tables={"delta_net": table}))
    assert set(device.efficiencies) == set(device.warps) == {"delta_net"}
    assert device.tables["delta_net"] is table
