"""What one worker holds of a plan: one replica of one group, and its rows of every array.

Also which of those rows cross to which replica of another group.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from weavejax.plan import DeviceGroup, Plan
from weavejax.runtime.cells import Cells, plan_cells
from weavejax.runtime.routes import find_route


@dataclass(frozen=True, order=True)
class WorkerName:
    """A worker is one replica of one group.

    Examples:
        >>> str(WorkerName(1, 0)), WorkerName.parse("1.0") == WorkerName(1, 0)
        ('1.0', True)
    """

    group: int
    replica: int

    def __str__(self) -> str:
        return f"{self.group}.{self.replica}"

    @classmethod
    def parse(cls, text: str) -> WorkerName:
        group, replica = text.split(".")
        return cls(int(group), int(replica))

    def describe(self) -> str:
        """For messages."""
        return f"group {self.group} replica {self.replica}"


def worker_names(plan: Plan) -> tuple[WorkerName, ...]:
    """All workers of a plan, group by group."""
    return tuple(
        WorkerName(index, replica)
        for index, group in enumerate(plan.groups)
        for replica in range(group.replicas)
    )


@dataclass(frozen=True, kw_only=True)
class Share:
    """One worker's part of a plan's rows."""

    name: WorkerName
    replicas: int
    """Of the worker's group."""
    group: DeviceGroup
    """The group as if this replica were all of it."""
    cells: Cells
    """This replica's cells of every microbatch."""

    def mine(self, rows: np.ndarray) -> np.ndarray:
        """This replica's part of an array over the rows or cells of a microbatch."""
        size = rows.shape[0] // self.replicas
        return rows[self.name.replica * size :][:size]


def worker_share(plan: Plan, name: WorkerName) -> Share:
    """What a worker holds.

    Examples:
        >>> from weavejax.plan import ModelRef, Template, Workload
        >>> plan = Plan(
        ...     model=ModelRef(name="m", digest="", config={}), workload=Workload(context=8),
        ...     template=Template(cuts=(3,)), groups=(
        ...         DeviceGroup(device="cpu", replicas=2, resident_batch=6),
        ...         DeviceGroup(device="cpu", replicas=3, resident_batch=4)))
        >>> share = worker_share(plan, WorkerName(1, 2))
        >>> share.cells, share.mine(np.arange(12)).tolist()
        (Cells(count=2, rows=2, microbatches=1), [8, 9, 10, 11])
    """
    own, whole = plan.groups[name.group], plan_cells(plan)
    return Share(
        name=name,
        replicas=own.replicas,
        group=dataclasses.replace(own, replicas=1),
        cells=Cells(whole.count // own.replicas, whole.rows, whole.microbatches),
    )


@dataclass(frozen=True)
class RowRoute:
    """Rows that one replica gives another, as parts of both replicas' rows."""

    source: WorkerName
    destination: WorkerName
    cut: tuple[int, int]
    """Range of the source's rows, as (numerator of start, of stop) over :attr:`parts`."""
    parts: int
    """Parts the source's rows are counted in, so that one route serves rows and cells."""

    def rows(self, array: Any) -> Any:
        """The part of the source's array, of host or device, that travels."""
        size = array.shape[0]
        return array[self.cut[0] * size // self.parts : self.cut[1] * size // self.parts]


def row_routes(plan: Plan, source: int, destination: int) -> tuple[RowRoute, ...]:
    """Routes of every boundary from one group to another, in the order of rows.

    Every row crosses once. For one destination the routes, in order, fill its rows.

    Examples:
        >>> from weavejax.plan import ModelRef, Template, Workload
        >>> plan = Plan(
        ...     model=ModelRef(name="m", digest="", config={}), workload=Workload(context=8),
        ...     template=Template(cuts=(3,)), groups=(
        ...         DeviceGroup(device="cpu", replicas=2, resident_batch=6),
        ...         DeviceGroup(device="cpu", replicas=3, resident_batch=4)))
        >>> for route in row_routes(plan, 0, 1):
        ...     print(route.source, "->", route.destination, route.cut, "of", route.parts)
        0.0 -> 1.0 (0, 2) of 3
        0.0 -> 1.1 (2, 3) of 3
        0.1 -> 1.1 (0, 1) of 3
        0.1 -> 1.2 (1, 3) of 3
    """
    cells = plan_cells(plan).count

    def boxes(group: int) -> list[tuple[object, tuple[tuple[int, int]]]]:
        count = plan.groups[group].replicas
        size = cells // count
        return [((group, r), ((r * size, (r + 1) * size),)) for r in range(count)]

    deliveries = find_route(boxes(source), boxes(destination))
    return tuple(
        RowRoute(
            WorkerName(source, piece.source),
            WorkerName(destination, replica),
            piece.slices[0],
            cells // plan.groups[source].replicas,
        )
        for replica, delivery in enumerate(deliveries)
        for piece in delivery.pieces
    )
