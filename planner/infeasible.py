"""Why nothing fits: which constraint binds, by how much, and the nearest target that works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from weavejax.plan import Template, Workload
from weavejax.planner.branch_and_bound import Search, SearchState
from weavejax.planner.limits import SearchLimits, left_out
from weavejax.planner.report import InfeasiblePlanError
from weavejax.planner.space import Space

SHOWN = 3
"""Reasons a message lists."""


def explain_no_template(
    offered: Mapping[int, Sequence[Template]], limits: SearchLimits, policy: str
) -> InfeasiblePlanError:
    """The error for a policy without a template: it offers none, or the limits leave out all."""
    groups = f"{limits.min_groups} to {limits.max_groups} groups"
    reasons = {
        (count, left_out(template, count, limits)): None
        for count, templates in offered.items()
        for template in templates
    }
    if not reasons:
        return InfeasiblePlanError(
            f"policy {policy!r} offers no template for {groups}: it returned none for each. Allow "
            "the number of groups it cuts for with min_groups and max_groups (on the command "
            "line: --max-groups), or choose a policy that cuts this model",
            constraint="templates",
        )
    shown = [f"for {count} groups one {reason}" for count, reason in reasons]
    more = f"; and {len(shown) - SHOWN} more reasons" if len(shown) > SHOWN else ""
    return InfeasiblePlanError(
        f"policy {policy!r} offers {sum(map(len, offered.values()))} template(s) for {groups}, and "
        f"the limits leave out all of them: {'; '.join(shown[:SHOWN])}{more}",
        constraint="templates",
    )


def explain_infeasible(
    space: Space,
    templates: Mapping[int, Sequence[Template]],
    state: SearchState,
    workload: Workload,
) -> InfeasiblePlanError:
    """The error for a search that covered its grid and found no plan."""
    context, slo_s = workload.context, workload.tpot_slo_s
    model = space.config.name
    if not space.points:
        return InfeasiblePlanError(
            f"no group of the cluster can run {model!r} at a batch of the grid: tensor_parallel "
            f"must be one of {space.limits.tensor_parallel}, fit a node and divide the model, and "
            "replicas x microbatches x attention_data_parallel must divide a global batch",
            constraint="grid",
        )
    if state.short_bytes > 0:
        return InfeasiblePlanError(
            f"memory binds: {model!r} at context {context} does not fit any allowed group; the "
            f"closest replica needs {_bytes(state.short_bytes)} more than its devices have. Allow "
            "more tensor_parallel, more groups, a shorter context or larger devices",
            constraint="memory",
            short_bytes=int(np.ceil(state.short_bytes)),
        )
    fastest = Search(space, templates, np.inf, fastest=True).run().best
    if fastest is None:
        return InfeasiblePlanError(
            f"devices bind: every group that holds {model!r} at context {context} fits its memory, "
            f"but no plan stays within max_devices={space.limits.max_devices} and the inventory "
            f"{', '.join(f'{spec.name}:{count}' for spec, count in space.cluster.devices)}",
            constraint="devices",
        )
    assert slo_s is not None
    nearest_s = fastest.round_trip_time_s
    return InfeasiblePlanError(
        f"latency binds: the fastest plan for {model!r} at context {context} takes "
        f"{nearest_s * 1e3:.3f} ms a token, {(nearest_s - slo_s) * 1e3:.3f} ms over the target of "
        f"{slo_s * 1e3:.3f} ms; the nearest feasible target is {nearest_s * 1e3:.3f} ms",
        constraint="latency",
        short_s=nearest_s - slo_s,
        nearest_slo_s=nearest_s,
    )


def _bytes(count: float) -> str:
    return f"{count:,.0f} bytes ({count / 1e9:.2f} GB)"
