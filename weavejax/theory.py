"""Closed-form cost and gain of operator-level disaggregation (OpWeave section 3, appendix A).

Costs are US dollars per output token at steady state, communication hidden. ``kv_bytes`` is
m_kv(s), the cache bytes of one request at mean context s; every function takes an array of them, so
one call covers many contexts, and answers in the same shape. The theory explains and bounds; plans
are chosen by :mod:`weavejax.planner` from operator latencies.

>>> from weavejax.meshes import device_spec
>>> h100 = TheoryDevice.from_spec(device_spec("h100-sxm"))
>>> l40s = TheoryDevice.from_spec(device_spec("l40s"))
>>> round(hardware_ratio(h100, l40s), 2), round(heterogeneous_gain_bound(h100, l40s), 2)
(1.42, 1.1)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weavejax.theory_terms import TheoryDevice, TheoryModel

__all__ = [
    "CadBalance",
    "HeterogeneousPeak",
    "TheoryDevice",
    "TheoryModel",
    "best_heterogeneous_usd_per_token",
    "best_homogeneous_usd_per_token",
    "bound_price_ratio",
    "by_bandwidth",
    "cad_balance",
    "colocated_usd_per_token",
    "compute_bound_batch",
    "hardware_ratio",
    "heterogeneous_gain",
    "heterogeneous_gain_bound",
    "heterogeneous_peak",
    "heterogeneous_usd_per_token",
    "homogeneous_gain",
    "homogeneous_gain_cap",
    "homogeneous_gain_memory_bound",
    "homogeneous_usd_per_token",
    "max_batch",
    "relaxed_batch",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeterogeneousPeak:
    """Where the gain of two device types over the better one is largest (Theorem 3.2, part 3)."""

    kv_bytes: float
    """x*, bytes per request at which both homogeneous costs are equal"""
    gain: float
    """(rq − 1)/(r + q − 2), the gain there"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CadBalance:
    """Whether attention and rest of a uniform-layer model can be balanced (equations 32–35)."""

    attention_time_max_s: float
    """M_1/(μ·β_1), seconds: the longest an attention stage can take"""
    rest_time_min_s: float
    """M_weights,2/β_2, seconds: the shortest the rest can take, loading its weights"""

    @property
    def feasible(self) -> bool:
        """False where bubbles are unavoidable."""
        return self.attention_time_max_s >= self.rest_time_min_s


def homogeneous_usd_per_token(
    device: TheoryDevice, model: TheoryModel, kv_bytes: ArrayLike
) -> NDArray[np.float64]:
    """Cost of attention and GEMMs on separate groups of one type: α·m_kv + 2·γ·P_act (1)."""
    return heterogeneous_usd_per_token(device, device, model, kv_bytes)


def heterogeneous_usd_per_token(
    attention: TheoryDevice, gemm: TheoryDevice, model: TheoryModel, kv_bytes: ArrayLike
) -> NDArray[np.float64]:
    """Cost with attention on one type and GEMMs on another: α_j·m_kv + 2·γ_k·P_act (2)."""
    return attention.usd_per_byte * _kv(kv_bytes) + gemm.usd_per_flop * model.flop_per_token


def relaxed_batch(
    device: TheoryDevice, model: TheoryModel, kv_bytes: ArrayLike
) -> NDArray[np.float64]:
    """b̄ = (M − M_weights)/m_kv, requests beside the weights, not rounded (3); ≤ 0: none fits."""
    with np.errstate(divide="ignore"):
        return np.divide(device.memory_bytes - model.weights_bytes, _kv(kv_bytes))


def max_batch(device: TheoryDevice, model: TheoryModel, kv_bytes: ArrayLike) -> NDArray[np.float64]:
    """b_max = ⌊b̄⌋, at least 0 (3)."""
    return np.maximum(np.floor(relaxed_batch(device, model, kv_bytes)), 0.0)


def compute_bound_batch(device: TheoryDevice, model: TheoryModel) -> float:
    """b* = M_weights·F/(2·P_act·β): the batch from which GEMMs are compute-bound."""
    load_s = model.weights_bytes / device.bandwidth_bytes_per_s
    return load_s * device.flop_per_s / model.flop_per_token


def colocated_usd_per_token(
    device: TheoryDevice,
    model: TheoryModel,
    kv_bytes: ArrayLike,
    batch: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Cost of a colocated device: α·m_kv + max(α·M_weights/b, 2·γ·P_act) (4, 12).

    Without ``batch`` at b̄, where it is least. Infinite where the batch does not fit, or not even
    one request does (b_max < 1).
    """
    return device.require_usd_per_s() * _colocated_s(device, model, kv_bytes, batch)


def homogeneous_gain(
    device: TheoryDevice, model: TheoryModel, kv_bytes: ArrayLike
) -> NDArray[np.float64]:
    """G_hom = CPT_coloc / CPT_hom; needs no price. NaN where no request fits (b_max < 1).

    Theorem 3.1: 1 while b̄ ≥ b*, then strictly increasing in m_kv, and below
    :func:`homogeneous_gain_cap`.

    >>> gemma = TheoryModel(weights_bytes=54e9, active_params=27e9)
    >>> h100 = TheoryDevice(bandwidth_bytes_per_s=3.35e12, flop_per_s=989e12, memory_bytes=80e9)
    >>> homogeneous_gain(h100, gemma, [1e7, 1e9, 1e12]).round(2).tolist()
    [1.0, 2.6, nan]
    """
    disaggregated_s = (
        _kv(kv_bytes) / device.bandwidth_bytes_per_s + model.flop_per_token / device.flop_per_s
    )
    gain = _colocated_s(device, model, kv_bytes, None) / disaggregated_s
    return np.where(np.isfinite(gain), gain, np.nan)[()]


def homogeneous_gain_memory_bound(
    device: TheoryDevice, model: TheoryModel, kv_bytes: ArrayLike
) -> NDArray[np.float64]:
    """The gain where b̄ < b*: (m_kv/β)/(m_kv/β + 2·P_act/F) · M/(M − M_weights) (18)."""
    attention_s = _kv(kv_bytes) / device.bandwidth_bytes_per_s
    share = attention_s / (attention_s + model.flop_per_token / device.flop_per_s)
    return share * homogeneous_gain_cap(device, model)


def homogeneous_gain_cap(device: TheoryDevice, model: TheoryModel) -> float:
    """M/(M − M_weights), never reached by G_hom (5). M is the group's, all its devices together.

    Raises:
      ValueError: the weights leave no memory, so there is no colocated deployment to gain over.
    """
    free_bytes = device.memory_bytes - model.weights_bytes
    if free_bytes <= 0:
        raise ValueError(
            f"the weights ({model.weights_bytes:.4g} bytes) must be smaller than the memory "
            f"({device.memory_bytes:.4g} bytes) for a colocated deployment; use more devices"
        )
    return device.memory_bytes / free_bytes


def best_homogeneous_usd_per_token(
    devices: Sequence[TheoryDevice], model: TheoryModel, kv_bytes: ArrayLike
) -> NDArray[np.float64]:
    """The cheapest single type at each context (6)."""
    costs = [homogeneous_usd_per_token(device, model, kv_bytes) for device in _some(devices)]
    return np.min(costs, axis=0)


def best_heterogeneous_usd_per_token(
    devices: Sequence[TheoryDevice], model: TheoryModel, kv_bytes: ArrayLike
) -> NDArray[np.float64]:
    """Attention on the cheapest byte, GEMMs on the cheapest FLOP (7)."""
    attention = min(_some(devices), key=lambda device: device.usd_per_byte)
    gemm = min(devices, key=lambda device: device.usd_per_flop)
    return heterogeneous_usd_per_token(attention, gemm, model, kv_bytes)


def heterogeneous_gain(
    devices: Sequence[TheoryDevice], model: TheoryModel, kv_bytes: ArrayLike
) -> NDArray[np.float64]:
    """G_het = CPT*_hom / CPT*_het ≥ 1, the gain of mixing types over the best single one."""
    homogeneous = best_homogeneous_usd_per_token(devices, model, kv_bytes)
    return homogeneous / best_heterogeneous_usd_per_token(devices, model, kv_bytes)


def by_bandwidth(first: TheoryDevice, second: TheoryDevice) -> tuple[TheoryDevice, TheoryDevice]:
    """The two types labelled as in Theorem 3.2: type 1 has more bytes per FLOP, so η ≥ 1."""

    def bytes_per_flop(device: TheoryDevice) -> float:
        return device.bandwidth_bytes_per_s / device.flop_per_s

    swapped = bytes_per_flop(first) < bytes_per_flop(second)
    return (second, first) if swapped else (first, second)


def hardware_ratio(first: TheoryDevice, second: TheoryDevice) -> float:
    """η = β1·F2/(β2·F1) ≥ 1, after labelling; free of prices."""
    one, two = by_bandwidth(first, second)
    bandwidth = one.bandwidth_bytes_per_s / two.bandwidth_bytes_per_s
    return bandwidth * (two.flop_per_s / one.flop_per_s)


def heterogeneous_gain_bound(first: TheoryDevice, second: TheoryDevice) -> float:
    """(1 + √η)/2, above which no G_het lies at any context and any prices (8)."""
    return (1 + math.sqrt(hardware_ratio(first, second))) / 2


def bound_price_ratio(first: TheoryDevice, second: TheoryDevice) -> float:
    """c1/c2 = √(β1·F1/(β2·F2)), of the types as given, at which the peak is the bound (A.5.2)."""
    bandwidth = first.bandwidth_bytes_per_s / second.bandwidth_bytes_per_s
    return math.sqrt(bandwidth * (first.flop_per_s / second.flop_per_s))


def heterogeneous_peak(
    first: TheoryDevice, second: TheoryDevice, model: TheoryModel
) -> HeterogeneousPeak | None:
    """x* = 2·P_act·(γ1 − γ2)/(α2 − α1) and the gain there; None where one type is no worse in both.

    >>> one = TheoryDevice(bandwidth_bytes_per_s=4, flop_per_s=1, memory_bytes=1, usd_per_s=1)
    >>> two = TheoryDevice(bandwidth_bytes_per_s=1, flop_per_s=4, memory_bytes=1, usd_per_s=1)
    >>> heterogeneous_peak(one, two, TheoryModel(weights_bytes=1, active_params=1))
    HeterogeneousPeak(kv_bytes=2.0, gain=2.5)
    """
    one, two = by_bandwidth(first, second)
    r = two.usd_per_byte / one.usd_per_byte
    q = one.usd_per_flop / two.usd_per_flop
    if r <= 1 or q <= 1:
        return None
    saved_usd = model.flop_per_token * (one.usd_per_flop - two.usd_per_flop)
    crossing_bytes = saved_usd / (two.usd_per_byte - one.usd_per_byte)
    return HeterogeneousPeak(kv_bytes=crossing_bytes, gain=(r * q - 1) / (r + q - 2))


def cad_balance(
    attention: TheoryDevice,
    rest: TheoryDevice,
    *,
    rest_weights_bytes: float,
    microbatches: int,
) -> CadBalance:
    """The balance condition of core-attention disaggregation (A.6), necessary, not sufficient.

    ``rest_weights_bytes`` is what ``rest`` holds: one device's shard for one device, or all the
    weights for a group taken as one device.

    >>> h100 = TheoryDevice(bandwidth_bytes_per_s=3.35e12, flop_per_s=989e12, memory_bytes=80e9)
    >>> cad_balance(h100, h100, rest_weights_bytes=54e9, microbatches=2).feasible
    False
    """
    if microbatches < 1:
        raise ValueError(f"microbatches must be at least 1, got {microbatches!r}")
    return CadBalance(
        attention_time_max_s=attention.memory_bytes
        / (microbatches * attention.bandwidth_bytes_per_s),
        rest_time_min_s=rest_weights_bytes / rest.bandwidth_bytes_per_s,
    )


def _colocated_s(
    device: TheoryDevice, model: TheoryModel, kv_bytes: ArrayLike, batch: ArrayLike | None
) -> NDArray[np.float64]:
    """Device seconds per token of a colocated device; infinite where the batch does not fit."""
    attention_s = _kv(kv_bytes) / device.bandwidth_bytes_per_s
    limit = relaxed_batch(device, model, kv_bytes)
    rows = limit if batch is None else np.asarray(batch, dtype=np.float64)
    fits = (limit >= 1) & (rows > 0) & (rows <= limit)
    load_s = model.weights_bytes / device.bandwidth_bytes_per_s / np.where(fits, rows, 1.0)
    return np.where(
        fits, attention_s + np.maximum(load_s, model.flop_per_token / device.flop_per_s), np.inf
    )


def _kv(kv_bytes: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(kv_bytes, dtype=np.float64)
    if not np.all(array >= 0):
        raise ValueError(f"kv_bytes must be at least 0 everywhere, got {kv_bytes!r}")
    return array


def _some(devices: Sequence[TheoryDevice]) -> Sequence[TheoryDevice]:
    if not devices:
        raise ValueError("at least one device type is needed, got none")
    return devices
