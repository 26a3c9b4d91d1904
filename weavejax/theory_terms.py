"""The few numbers of a device and of a model that the closed-form theory needs (paper, Table 4)."""

from __future__ import annotations

import dataclasses
import math

from weavejax.meshes.devices import DeviceSpec, MissingPriceError

_SECONDS_PER_HOUR = 3600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class TheoryDevice:
    """c, β, M and F of one device, or of a tensor-parallel group taken as one device.

    Raises:
      ValueError: a quantity that is not positive and finite.
    """

    bandwidth_bytes_per_s: float
    """β, bytes per second"""
    flop_per_s: float
    """F, FLOP per second"""
    memory_bytes: float
    """M, bytes available to weights and cache"""
    usd_per_s: float | None = None
    """c, US dollars per second; only costs and heterogeneous gains need it"""

    def __post_init__(self) -> None:
        _require_positive(self)

    @classmethod
    def from_spec(
        cls, spec: DeviceSpec, *, devices: int = 1, memory_reserve: float = 0.0
    ) -> TheoryDevice:
        """A group of ``devices`` equal devices; ``memory_reserve`` is the share of memory kept off.

        Raises:
          ValueError: fewer than one device, or a reserve outside [0, 1).

        >>> from weavejax.meshes import device_spec
        >>> TheoryDevice.from_spec(device_spec("h100"), devices=8, memory_reserve=0.1).memory_bytes
        576000000000.0
        """
        if devices < 1:
            raise ValueError(f"a group has at least one device, got devices={devices!r}")
        if not 0 <= memory_reserve < 1:
            raise ValueError(
                f"memory_reserve is a share of the memory in [0, 1), got {memory_reserve!r}"
            )
        price = spec.usd_per_hour
        return cls(
            bandwidth_bytes_per_s=devices * spec.bandwidth_bytes_per_s,
            flop_per_s=devices * spec.bf16_flop_per_s,
            memory_bytes=devices * spec.memory_bytes * (1 - memory_reserve),
            usd_per_s=None if price is None else devices * price / _SECONDS_PER_HOUR,
        )

    @property
    def usd_per_byte(self) -> float:
        """α = c/β, US dollars per byte of memory traffic."""
        return self.require_usd_per_s() / self.bandwidth_bytes_per_s

    @property
    def usd_per_flop(self) -> float:
        """γ = c/F, US dollars per FLOP."""
        return self.require_usd_per_s() / self.flop_per_s

    def require_usd_per_s(self) -> float:
        """The price; raises MissingPriceError where there is none."""
        if self.usd_per_s is None:
            raise MissingPriceError(
                "a cost needs usd_per_s, and this device has none; give a price"
            )
        return self.usd_per_s


@dataclasses.dataclass(frozen=True, kw_only=True)
class TheoryModel:
    """M_weights and P_act of a model.

    Raises:
      ValueError: a quantity that is not positive and finite.
    """

    weights_bytes: float
    """M_weights, bytes resident, all experts included"""
    active_params: float
    """P_act, GEMM parameters a request activates, routed experts only"""

    def __post_init__(self) -> None:
        _require_positive(self)

    @property
    def flop_per_token(self) -> float:
        """2·P_act: one multiply and one add per active parameter."""
        return 2.0 * self.active_params


def _require_positive(value: TheoryDevice | TheoryModel) -> None:
    for field in dataclasses.fields(value):
        number = getattr(value, field.name)
        if number is not None and not (math.isfinite(number) and number > 0):
            raise ValueError(f"{field.name} must be positive and finite, got {number!r}")
