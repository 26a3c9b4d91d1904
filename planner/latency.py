"""What the planner asks of a profile, and the tables it fills from the answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from weavejax.meshes.cluster import Cluster
from weavejax.models.specs import OperatorSpec
from weavejax.plan import DeviceGroup
from weavejax.planner.template_facts import OperatorTable


class LatencyProfile(Protocol):
    """The part of :class:`weavejax.profiles.Profile` that planning needs.

    A profile may also have ``stage_overhead_s``, fixed seconds added to every stage execution,
    and ``with_devices``, which makes a cluster's own device types known to it.
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


def class_times_s(
    profile: LatencyProfile,
    table: OperatorTable,
    group: DeviceGroup,
    rows: Sequence[int],
    context: int,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Seconds of every operator class and of one stage execution, and the sources of the first.

    Returns:
        ``[classes + 1, rows]`` seconds, the last line the fixed overhead of a stage, and
        ``[classes, rows]`` source codes.
    """
    batches = np.asarray(rows, dtype=np.int64)
    answers = [
        profile.operator_times_s(op, group, batches, context) for op in table.representatives
    ]
    overhead = np.full(len(batches), float(getattr(profile, "stage_overhead_s", 0.0)))
    times = np.stack([*(time_s for time_s, _ in answers), overhead])
    return times, np.stack([code for _, code in answers])
