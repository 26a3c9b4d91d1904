"""The same measured latencies with one assumption changed, for what-if questions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from weavejax.meshes.devices import DeviceSpec
from weavejax.models.specs import Attention, OperatorSpec
from weavejax.plan import DeviceGroup
from weavejax.profiles import Profile, load_profile


@dataclass(frozen=True, kw_only=True)
class ProfileVariant:
    """A profile with a fixed cost per stage execution, or another attention window.

    Examples:
        >>> ProfileVariant(stage_overhead_s=20e-6).name
        'nvidia-measured with 20 us a stage'
    """

    base: Profile | None = None
    """None is the shipped profile, loaded where it is needed."""
    stage_overhead_s: float = 0.0
    """Added to every stage execution: launches, synchronisation, host work."""
    timed_window: int | None = None
    """Windowed attention takes the time of this many tokens, whatever the cache holds."""

    @cached_property
    def profile(self) -> Profile:
        return load_profile() if self.base is None else self.base

    @property
    def name(self) -> str:
        changes = []
        if self.stage_overhead_s:
            changes.append(f"{self.stage_overhead_s * 1e6:g} us a stage")
        if self.timed_window is not None:
            changes.append(f"windows timed as {self.timed_window} tokens")
        return " with ".join((self.profile.name, *(" and ".join(changes),) * bool(changes)))

    @cached_property
    def hash(self) -> str:
        return f"{self.profile.hash}+{self.stage_overhead_s!r}+{self.timed_window!r}"

    def with_devices(self, devices: Mapping[str, DeviceSpec]) -> ProfileVariant:
        """The same that also knows a cluster's own device types."""
        return dataclasses.replace(self, base=self.profile.with_devices(devices))

    def operator_times_s(
        self, operator: OperatorSpec, group: DeviceGroup, batches: NDArray[np.int64], context: int
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """As :meth:`weavejax.profiles.Profile.operator_times_s`."""
        if self.timed_window is not None:
            kernels = tuple(
                dataclasses.replace(kernel, window=self.timed_window)
                if isinstance(kernel, Attention) and kernel.window is not None
                else kernel
                for kernel in operator.kernels
            )
            operator = dataclasses.replace(operator, kernels=kernels)
        return self.profile.operator_times_s(operator, group, batches, context)
