"""The search space as arrays: group options, owner points, templates.

An *option* is a device type with a parallelism. An *owner point* adds the number of replicas, at
one global batch B and number of microbatches; it fixes the rows of a replica and so every latency,
the memory and the price of a group, whatever the others do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weavejax.meshes.cluster import Cluster
from weavejax.meshes.devices import DeviceSpec
from weavejax.models.config import ModelConfig
from weavejax.models.costs import param_elements, state_bytes
from weavejax.plan import DeviceGroup, ModelRef, Parallelism, Plan, PlanError, Template, Workload
from weavejax.planner.cost import SECONDS_PER_HOUR
from weavejax.planner.latency import (
    LatencyProfile,
    by_microbatches,
    class_times_s,
    element_bytes,
)
from weavejax.planner.limits import SearchLimits
from weavejax.planner.memory import (
    RESERVE_FRACTION,
    kept_elements,
    working_elements,
)
from weavejax.planner.template_facts import OperatorTable, operator_table
from weavejax.schedule import check_plan

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class GroupOption:
    """A device type and how one replica cuts its operators."""

    device_index: int
    """Position in the cluster's inventory."""
    device: DeviceSpec
    parallelism: Parallelism

    def group(self, replicas: int, resident_batch: int) -> DeviceGroup:
        return DeviceGroup(
            device=self.device.name,
            tensor_parallel=self.parallelism.tensor_parallel,
            expert_parallel=self.parallelism.expert_parallel,
            attention_data_parallel=self.parallelism.attention_data_parallel,
            replicas=replicas,
            resident_batch=resident_batch,
        )


def group_options(
    config: ModelConfig, cluster: Cluster, limits: SearchLimits
) -> tuple[GroupOption, ...]:
    """Every device type and parallelism that can run the model, in a fixed order."""
    options = []
    for index, (device, count) in enumerate(cluster.devices):
        for ways in limits.tensor_parallel:
            if ways > min(count, device.devices_per_node, limits.max_devices):
                continue
            for parallelism in _parallelisms(config, ways, limits):
                option = GroupOption(device_index=index, device=device, parallelism=parallelism)
                if _runs(config, option):
                    options.append(option)
    return tuple(options)


def _parallelisms(config: ModelConfig, ways: int, limits: SearchLimits) -> Iterator[Parallelism]:
    moe = any(kind.ffn == "moe" for kind in config.layer_kinds)
    expert_ways = (1, ways) if moe and limits.expert_parallel else (1,)
    row_ways = (1, ways) if limits.attention_data_parallel else (1,)
    for expert in dict.fromkeys(expert_ways):
        for rows in dict.fromkeys(row_ways):
            yield Parallelism(
                tensor_parallel=ways, expert_parallel=expert, attention_data_parallel=rows
            )


def _runs(config: ModelConfig, option: GroupOption) -> bool:
    group = option.group(1, option.parallelism.attention_data_parallel)
    try:
        check_plan(
            Plan(
                model=ModelRef(name=config.name, digest=config.digest, config={}),
                workload=Workload(context=1),
                template=Template(),
                groups=(group,),
            ),
            config,
        )
    except PlanError:
        return False
    return True


@dataclass(frozen=True, kw_only=True, eq=False)
class OptionCosts:
    """Per device and operator class, for every option: ``[options, classes]``."""

    weight_bytes: Array
    tied_bytes: Array
    """``[options]`` what a group saves that owns both ends of a tied embedding."""
    state_bytes: Array
    """Cache of one slot on a device that holds it."""
    working_bytes: Array
    """Inputs, widest intermediate and outputs of one row."""
    kept_bytes: Array
    """``[classes]`` inputs of one row."""


def option_costs(table: OperatorTable, options: Sequence[GroupOption], context: int) -> OptionCosts:
    """Memory terms of :mod:`weavejax.planner.memory`, per class."""
    config, width = table.config, table.dtype_bytes
    shape = (len(options), table.num_classes)
    weights, states, working = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    tied = np.zeros(len(options))
    for row, option in enumerate(options):
        cut = option.parallelism
        for column, op in enumerate(table.representatives):
            for param in op.params:
                size = width * param_elements(param, op, cut, config.num_kv_heads)
                weights[row, column] += size
                if param.shared is not None:
                    tied[row] += size
            states[row, column] = sum(
                state_bytes(state, op, context, cut, width) for state in op.state
            )
            working[row, column] = width * working_elements(op, cut)
    kept = np.array([width * kept_elements(op) for op in table.representatives], dtype=float)
    return OptionCosts(
        weight_bytes=weights,
        tied_bytes=tied,
        state_bytes=states,
        working_bytes=working,
        kept_bytes=kept,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnerPoints:
    """All owner points of one global batch and number of microbatches, as columns."""

    batch: int
    microbatches: int
    option: NDArray[np.int64]
    replicas: NDArray[np.int64]
    rows: NDArray[np.int64]
    """Resident batch of one replica."""
    microbatch_rows: NDArray[np.int64]
    slots: NDArray[np.int64]
    """Slots one device attends for: the rows, or its share under data-parallel attention."""
    devices: NDArray[np.int64]
    ways: NDArray[np.int64]
    device_index: NDArray[np.int64]
    usd_per_row_s: Array
    """Price per second over resident rows: c / b."""
    limit_bytes: Array
    """Memory of one replica less the reserve."""
    class_s: Array
    """``[points, classes + 2]`` seconds of operator classes and programs, for one microbatch."""
    link_s_per_byte: Array
    """``[points, 2]`` seconds per byte of a row at this end: inside a node, between nodes."""
    link_latency_s: Array
    """``[points, 2]``"""
    smaller_batch: NDArray[np.int64]
    """``[max replicas + 1]``: 1 where the batch divided by that factor is on the grid."""

    def __len__(self) -> int:
        return len(self.option)


@dataclass(frozen=True, kw_only=True, eq=False)
class Space:
    """Everything a search reads, computed once."""

    config: ModelConfig
    cluster: Cluster
    limits: SearchLimits
    table: OperatorTable
    options: tuple[GroupOption, ...]
    costs: OptionCosts
    points: tuple[OwnerPoints, ...]
    """For each (microbatches, batch) that has any."""


def build_space(
    config: ModelConfig,
    cluster: Cluster,
    context: int,
    limits: SearchLimits,
    profile: LatencyProfile,
) -> Space:
    """Query the profile for every option and batch, and lay out the owner points.

    Raises:
        MissingPriceError: a device of the cluster has no price.
    """
    table = operator_table(config, element_bytes(profile))
    options = group_options(config, cluster, limits)
    for option in options:
        option.device.require_usd_per_hour()
    shapes = [
        (microbatches, batch, _feasible_shapes(options, cluster, limits, batch, microbatches))
        for microbatches in range(1, limits.max_microbatches + 1)
        for batch in limits.batches
    ]
    rows = sorted({s[2] // micro for micro, _, points in shapes for s in points})
    column = {count: index for index, count in enumerate(rows)}
    times = by_microbatches(
        profile,
        limits.max_microbatches,
        lambda view, micro: _option_times(view, table, options, rows, context, micro),
    )
    return Space(
        config=config,
        cluster=cluster,
        limits=limits,
        table=table,
        options=options,
        costs=option_costs(table, options, context),
        points=tuple(
            _owner_points(options, limits, batch, micro, points, times[micro], column)
            for micro, batch, points in shapes
            if points
        ),
    )


def _feasible_shapes(
    options: Sequence[GroupOption],
    cluster: Cluster,
    limits: SearchLimits,
    batch: int,
    microbatches: int,
) -> list[tuple[int, int, int]]:
    """(option, replicas, rows of a replica) whose rows divide and whose devices exist."""
    shapes = []
    for index, option in enumerate(options):
        ways = option.parallelism.tensor_parallel
        there = min(limits.max_devices, cluster.devices[option.device_index][1])
        row_ways = option.parallelism.attention_data_parallel
        for replicas in range(1, limits.max_replicas + 1):
            if ways * replicas <= there and batch % (replicas * microbatches * row_ways) == 0:
                shapes.append((index, replicas, batch // replicas))
    return shapes


def _option_times(
    profile: LatencyProfile,
    table: OperatorTable,
    options: Sequence[GroupOption],
    rows: Sequence[int],
    context: int,
    microbatches: int,
) -> Array:
    """``[options, rows, classes + 2]`` seconds; NaN where an option cannot cut that many rows."""
    times = np.full((len(options), len(rows), table.num_classes + 2), np.nan)
    for index, option in enumerate(options):
        ways = option.parallelism.attention_data_parallel
        usable = [i for i, count in enumerate(rows) if count % ways == 0]
        if usable:
            group = option.group(1, ways)
            counts = [rows[i] for i in usable]
            answer, _ = class_times_s(profile, table, group, counts, context, microbatches)
            times[index, usable] = answer.T
    return times


def _owner_points(
    options: Sequence[GroupOption],
    limits: SearchLimits,
    batch: int,
    microbatches: int,
    shapes: list[tuple[int, int, int]],
    times: Array,
    column: dict[int, int],
) -> OwnerPoints:
    option, replicas, rows = np.ascontiguousarray(np.array(shapes, dtype=np.int64).T)
    chosen = [options[i] for i in option]
    ways = np.array([o.parallelism.tensor_parallel for o in chosen], dtype=np.int64)
    row_ways = np.array([o.parallelism.attention_data_parallel for o in chosen], dtype=np.int64)
    price = np.array([o.device.require_usd_per_hour() for o in chosen]) / SECONDS_PER_HOUR
    memory = np.array([int(o.device.memory_bytes) for o in chosen], dtype=np.int64) * ways
    micro_rows = rows // microbatches
    links = [(o.device.intra_node, o.device.inter_node) for o in chosen]
    bandwidth = np.array([[link.bandwidth_bytes_per_s for link in pair] for pair in links])
    smaller = np.zeros(limits.max_replicas + 1, dtype=np.int64)
    for factor in range(2, limits.max_replicas + 1):
        smaller[factor] = batch % factor == 0 and batch // factor in limits.batches
    return OwnerPoints(
        batch=batch,
        microbatches=microbatches,
        option=option,
        replicas=replicas,
        rows=rows,
        microbatch_rows=micro_rows,
        slots=rows // row_ways,
        devices=replicas * ways,
        ways=ways,
        device_index=np.array([o.device_index for o in chosen], dtype=np.int64),
        usd_per_row_s=ways * price / rows,
        limit_bytes=(memory - (RESERVE_FRACTION * memory).astype(np.int64)).astype(float),
        class_s=times[option, [column[int(count)] for count in micro_rows]],
        link_s_per_byte=micro_rows[:, None] / (ways[:, None] * bandwidth),
        link_latency_s=np.array([[link.latency_s for link in pair] for pair in links]),
        smaller_batch=smaller,
    )
