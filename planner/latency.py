"""What the planner asks of a profile, and the tables it fills from the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from weavejax.meshes.cluster import Cluster
from weavejax.models.specs import OperatorSpec
from weavejax.plan import DeviceGroup
from weavejax.planner.memory import DTYPE_BYTES
from weavejax.planner.template_facts import OperatorTable

Answer = TypeVar("Answer")


class LatencyProfile(Protocol):
    """The part of :class:`weavejax.profiles.Profile` that planning needs.

    A profile may also have

    * ``stage_overhead_s``, fixed seconds added to every stage that runs as a program of its own,
      or ``stage_overheads_s``, the same by device;
    * ``with_devices``, which makes a cluster's own device types known to it;
    * ``with_microbatches``, which answers for the mean of that many executions in a row;
    * ``element_bytes``, the width of weights and activations (2 without it).
    """

    @property
    def name(self) -> str: ...

    @cached_property
    def hash(self) -> str: ...

    def operator_times_s(
        self, operator: OperatorSpec, group: DeviceGroup, batches: NDArray[np.int64], context: int
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Seconds and source codes of one operator for each number of rows of one replica.

        A code is a position in ``("measured", "derived", "analytic")``.
        """
        ...


def with_cluster(profile: LatencyProfile, cluster: Cluster) -> LatencyProfile:
    """The profile, knowing the device types that the cluster describes."""
    extend = getattr(profile, "with_devices", None)
    if extend is None:
        return profile
    return extend({spec.name: spec for spec, _ in cluster.devices})


def with_microbatches(profile: LatencyProfile, microbatches: int) -> LatencyProfile:
    """The profile whose times are the mean over microbatches that follow each other.

    A stage's second microbatch may find the weights in a cache.
    """
    view = getattr(profile, "with_microbatches", None)
    return profile if view is None else view(microbatches)


def by_microbatches(
    profile: LatencyProfile, most: int, ask: Callable[[LatencyProfile, int], Answer]
) -> dict[int, Answer]:
    """``ask`` of every number of microbatches up to ``most``, once for those that are the same."""
    found: dict[int, Answer] = {}
    asked: list[tuple[LatencyProfile, bool, Answer]] = []
    for count in range(1, most + 1):
        view, several = with_microbatches(profile, count), count > 1
        known = [answer for other, more, answer in asked if other is view and more == several]
        if not known:
            known = [ask(view, count)]
            asked.append((view, several, known[0]))
        found[count] = known[0]
    return found


def element_bytes(profile: LatencyProfile) -> int:
    """Bytes of a weight, cache entry or activation that the latencies hold for."""
    return int(getattr(profile, "element_bytes", DTYPE_BYTES))


def _stage_overhead_s(profile: LatencyProfile, device: str) -> float:
    by_device = getattr(profile, "stage_overheads_s", {})
    return float(by_device.get(device, getattr(profile, "stage_overhead_s", 0.0)))


def class_times_s(
    profile: LatencyProfile,
    table: OperatorTable,
    group: DeviceGroup,
    rows: Sequence[int],
    context: int,
    microbatches: int,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Seconds of every operator class and of a program, and the sources of the first.

    Returns:
        ``[classes + 2, rows]`` seconds, the last two lines what a program costs beside its
        operators, always and where there are several microbatches; and ``[classes, rows]`` source
        codes.
    """
    batches = np.asarray(rows, dtype=np.int64)
    answers = [
        profile.operator_times_s(op, group, batches, context) for op in table.representatives
    ]
    overhead = np.full(len(batches), _stage_overhead_s(profile, group.device))
    several = overhead if microbatches > 1 else np.zeros_like(overhead)
    times = np.stack([*(time_s for time_s, _ in answers), overhead, several])
    return times, np.stack([code for _, code in answers])
