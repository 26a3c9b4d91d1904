"""Bounds of whole combinations: one template at one batch and number of microbatches, all owners.

For every owner the cheapest and the fastest of its fitting points bound any choice of owners:

- T >= mu * C_m for each owner m, C_m its compute per microbatch (paper section 5, L_comp);
- T >= sum_m C_m + sum of moves, the critical path of one microbatch;
- CPT = sum_m r_m * T >= sum_m min over p of r_m(p) * max(T_bound, mu * C_m(p)), because T is at
  least every owner's own work at the point it chooses, not only at its fastest.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def combination_bounds(
    work_s, weight_bytes, slot_bytes, working_bytes, kept_bytes, path_s, option, rows,
    microbatch_rows, slots, ways, usd_per_row_s, limit_bytes, microbatches, lower_s, lower_usd,
    fitting, short_bytes,
):  # fmt: skip  # pragma: no cover - compiled
    """Fill the bounds of every template at one batch and number of microbatches.

    Args:
        work_s: ``[T, K, P]`` compute of each owner at each point, per microbatch.
        weight_bytes, slot_bytes, working_bytes: ``[T, K, H]`` of one device; kept_bytes ``[T, K]``.
        path_s: ``[T]`` least seconds of all moves of one microbatch.
        option ... limit_bytes: columns of the owner points, ``[P]``.
        lower_s, lower_usd: ``[T]`` bounds of T_rtt and of dollars per token; infinite where an
            owner has no fitting point.
        fitting: ``[T, K]`` how many points of each owner fit.
        short_bytes: ``[T]`` bytes missing per replica at the best point of the worst owner.
    """
    templates, groups, points = work_s.shape
    fits = np.empty((groups, points), dtype=np.bool_)
    for t in range(templates):
        slowest, path, short = 0.0, path_s[t], -np.inf
        for m in range(groups):
            fastest, missing, count = np.inf, np.inf, 0
            for p in range(points):
                h = option[p]
                need = replica_bytes(
                    weight_bytes[t, m, h],
                    slot_bytes[t, m, h],
                    working_bytes[t, m, h],
                    kept_bytes[t, m],
                    0.0,
                    rows[p],
                    microbatch_rows[p],
                    slots[p],
                    ways[p],
                )
                missing = min(missing, need - limit_bytes[p])
                fits[m, p] = need <= limit_bytes[p]
                if fits[m, p]:
                    count += 1
                    fastest = min(fastest, work_s[t, m, p])
            fitting[t, m] = count
            short = max(short, missing)
            slowest = max(slowest, microbatches * fastest)
            path += fastest
        short_bytes[t] = short
        bound_s = max(slowest, path)
        lower_s[t] = bound_s
        if bound_s == np.inf:
            lower_usd[t] = np.inf
            continue
        total = 0.0
        for m in range(groups):
            cheapest = np.inf
            for p in range(points):
                if fits[m, p]:
                    least_s = max(bound_s, microbatches * work_s[t, m, p])
                    cheapest = min(cheapest, usd_per_row_s[p] * least_s)
            total += cheapest
        lower_usd[t] = total


@njit(cache=True, nogil=True)
def fitting_points(  # pragma: no cover - compiled
    weight_bytes,
    slot_bytes,
    working_bytes,
    kept_bytes,
    interface_bytes_per_row,
    option,
    rows,
    microbatch_rows,
    slots,
    ways,
    limit_bytes,
):
    """``[K, P]`` whether each owner point's replica fits; arguments of one template as above.

    ``interface_bytes_per_row`` is ``[K]``: the widest interface received plus the widest sent.
    """
    groups, points = len(kept_bytes), len(option)
    fits = np.empty((groups, points), dtype=np.bool_)
    for m in range(groups):
        for p in range(points):
            h = option[p]
            need = replica_bytes(
                weight_bytes[m, h],
                slot_bytes[m, h],
                working_bytes[m, h],
                kept_bytes[m],
                interface_bytes_per_row[m],
                rows[p],
                microbatch_rows[p],
                slots[p],
                ways[p],
            )
            fits[m, p] = need <= limit_bytes[p]
    return fits


@njit(cache=True, nogil=True)
def replica_bytes(  # pragma: no cover - compiled
    weight_bytes,
    slot_bytes,
    working_bytes,
    kept_bytes,
    interface_bytes_per_row,
    rows,
    microbatch_rows,
    slots,
    ways,
):
    """Bytes of one replica, as ``replica_memory`` counts them, less the reserve."""
    device = weight_bytes + slots * slot_bytes + microbatch_rows * working_bytes + rows * kept_bytes
    return ways * device + rows * interface_bytes_per_row
