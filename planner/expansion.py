"""Branch and bound over the owner points of one combination.

Groups are assigned in order. A prefix is cut when a lower bound of T_rtt passes the target or a
lower bound of the cost passes the incumbent. The bounds are those of
:mod:`weavejax.planner.combination_bounds` with the moves between assigned groups added: each
channel carries mu times its moves, and the critical path carries every move once. While a prefix
is incomplete, groups of one device type get the better of their links; a complete choice uses the
rule of :mod:`weavejax.planner.transfer`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

INSIDE, BETWEEN = 0, 1
DEVICES, SLO, COST, DUPLICATE = range(4)
"""Reasons a candidate is cut, indices of ``cut``."""


@njit(cache=True, nogil=True)
def expand(
    work_s, kept, microbatches, pair_moves, pair_bytes, replicas, devices, device_index,
    usd_per_row_s, link_s_per_byte, link_latency_s, smaller_batch, node_devices, inventory,
    max_devices, slo_s, cutoff_usd, drop_duplicates, cut,
):  # fmt: skip  # pragma: no cover - compiled
    """Candidates of one combination that no bound removes.

    Args:
        work_s: ``[K, P]`` compute per microbatch; kept: ``[K, P]`` points that fit and are not
            dominated.
        pair_moves, pair_bytes: ``[K, K]`` boundaries and bytes per row between groups.
        replicas ... smaller_batch: columns of the owner points.
        node_devices, inventory: per device type.
        slo_s, cutoff_usd: infinite to cut nothing.
        drop_duplicates: leave out what another batch holds with fewer replicas everywhere.
        cut: ``[4]`` counts per reason, added to.

    Returns:
        points ``[n, K]``, bounds of T_rtt and of dollars per token ``[n]``, and for each the bit
        set of device types that share nodes ``[n]``.
    """
    groups = len(work_s)
    sizes, lists, least, below = _prepare(
        work_s, kept, usd_per_row_s, microbatches, slo_s, cutoff_usd, cut
    )
    tail = _tail(least, groups)
    found, shares = np.empty((64, groups), dtype=np.int64), np.empty(64, dtype=np.int64)
    bounds = np.empty((64, 2))
    position, choice = np.zeros(groups, dtype=np.int64), np.zeros(groups, dtype=np.int64)
    total = depth = 0
    while depth >= 0:
        if position[depth] == sizes[depth]:
            position[depth] = 0
            depth -= 1
            continue
        choice[depth] = lists[depth, position[depth]]
        position[depth] += 1
        last = depth == groups - 1
        if not _devices_fit(choice, depth, devices, device_index, inventory, max_devices):
            cut[DEVICES] += below[depth + 1]
            continue
        if last and drop_duplicates and _is_multiple(choice, replicas, smaller_batch):
            cut[DUPLICATE] += 1
            continue
        shared = -1  # not known yet
        if last:
            shared = _sharing(choice, replicas, devices, device_index, node_devices)
        bound_s, rate = _bound(
            choice, depth, work_s, microbatches, pair_moves, pair_bytes, device_index,
            usd_per_row_s, link_s_per_byte, link_latency_s, shared, tail,
        )  # fmt: skip
        bound_usd = bound_s * rate
        for m in range(depth + 1, groups):
            bound_usd += max(bound_s * least[m, 1], least[m, 2])
        if bound_s > slo_s:
            cut[SLO] += below[depth + 1]
            continue
        if bound_usd > cutoff_usd:
            cut[COST] += below[depth + 1]
            continue
        if not last:
            depth += 1
            continue
        if total == len(found):
            found, bounds, shares = _doubled(found), _doubled(bounds), _doubled(shares)
        for m in range(groups):  # a loop: numba takes seconds to compile `found[total] = choice`
            found[total, m] = choice[m]
        bounds[total, 0] = bound_s
        bounds[total, 1] = bound_usd
        shares[total] = shared
        total += 1
    return found[:total], bounds[:total], shares[:total]


@njit(cache=True, nogil=True)
def _doubled(rows):  # pragma: no cover - compiled
    return np.concatenate((rows, np.empty_like(rows)))


@njit(cache=True, nogil=True)
def _prepare(
    work_s, kept, usd_per_row_s, microbatches, slo_s, cutoff_usd, cut
):  # pragma: no cover - compiled
    """Narrowed lists of points, what bounds them, and the candidates below each depth."""
    groups = len(work_s)
    left = kept.copy()
    for _ in range(2):  # a narrower list of one group narrows the others
        sizes, lists, least = _lists(work_s, left, usd_per_row_s, microbatches)
        _narrow(work_s, left, sizes, least, usd_per_row_s, microbatches, slo_s, cutoff_usd, cut)
    sizes, lists, least = _lists(work_s, left, usd_per_row_s, microbatches)
    below = np.ones(groups + 1, dtype=np.int64)
    for m in range(groups - 1, -1, -1):
        below[m] = below[m + 1] * sizes[m]
    return sizes, lists, least, below


@njit(cache=True, nogil=True)
def _lists(work_s, kept, usd_per_row_s, microbatches):  # pragma: no cover - compiled
    """Kept points of each owner, and the least work, price and price times own work of each."""
    groups, points = work_s.shape
    sizes = np.zeros(groups, dtype=np.int64)
    lists = np.empty((groups, points), dtype=np.int64)
    least = np.full((groups, 3), np.inf)
    for m in range(groups):
        for p in range(points):
            if kept[m, p]:
                lists[m, sizes[m]] = p
                sizes[m] += 1
                least[m, 0] = min(least[m, 0], work_s[m, p])
                least[m, 1] = min(least[m, 1], usd_per_row_s[p])
                own = usd_per_row_s[p] * microbatches * work_s[m, p]
                least[m, 2] = min(least[m, 2], own)
    return sizes, lists, least


@njit(cache=True, nogil=True)
def _narrow(
    work_s, left, sizes, least, usd_per_row_s, microbatches, slo_s, cutoff_usd, cut
):  # pragma: no cover - compiled
    """Clear points that no choice of the other groups makes good enough."""
    groups, points = work_s.shape
    sizes = sizes.copy()
    for m in range(groups):
        others_s, slowest_s, others = 0.0, 0.0, 1
        for other in range(groups):
            if other != m:
                others_s += least[other, 0]
                slowest_s = max(slowest_s, least[other, 0])
                others *= sizes[other]
        for p in range(points):
            if not left[m, p]:
                continue
            busiest_s = microbatches * max(slowest_s, work_s[m, p])
            bound_s = max(busiest_s, others_s + work_s[m, p])
            bound_usd = usd_per_row_s[p] * bound_s
            for other in range(groups):
                if other != m:
                    bound_usd += max(bound_s * least[other, 1], least[other, 2])
            if bound_s > slo_s or bound_usd > cutoff_usd:
                cut[SLO if bound_s > slo_s else COST] += others
                left[m, p] = False
                sizes[m] -= 1


@njit(cache=True, nogil=True)
def _tail(least, groups):  # pragma: no cover - compiled
    """``[depth]`` sum and maximum of the least work of the groups after depth."""
    tail = np.zeros((groups, 2))
    for m in range(groups - 2, -1, -1):
        tail[m, 0] = tail[m + 1, 0] + least[m + 1, 0]
        tail[m, 1] = max(tail[m + 1, 1], least[m + 1, 0])
    return tail


@njit(cache=True, nogil=True)
def _bound(
    choice, depth, work_s, microbatches, pair_moves, pair_bytes, device_index,
    usd_per_row_s, link_s_per_byte, link_latency_s, shared, tail,
):  # fmt: skip  # pragma: no cover - compiled
    """Lower bound of T_rtt for groups 0..depth, and the sum of their prices per row."""
    path, busiest, rate = tail[depth, 0], tail[depth, 1], 0.0
    for m in range(depth + 1):
        path += work_s[m, choice[m]]
        busiest = max(busiest, work_s[m, choice[m]])
        rate += usd_per_row_s[choice[m]]
    for m in range(depth + 1):
        out = into = 0.0
        for other in range(depth + 1):
            if other == m or pair_moves[m, other] + pair_moves[other, m] == 0:
                continue
            p, q = choice[m], choice[other]
            latency = max(link_latency_s[p, BETWEEN], link_latency_s[q, BETWEEN])
            per_byte = max(link_s_per_byte[p, BETWEEN], link_s_per_byte[q, BETWEEN])
            if device_index[p] == device_index[q] and shared >> device_index[p] & 1:
                near = max(link_s_per_byte[p, INSIDE], link_s_per_byte[q, INSIDE])
                open_choice = shared < 0  # either link may come to apply: take the better
                per_byte = min(per_byte, near) if open_choice else near
                near = max(link_latency_s[p, INSIDE], link_latency_s[q, INSIDE])
                latency = min(latency, near) if open_choice else near
            out += pair_moves[m, other] * latency + pair_bytes[m, other] * per_byte
            into += pair_moves[other, m] * latency + pair_bytes[other, m] * per_byte
        path += out
        busiest = max(busiest, max(out, into))
    return max(path, microbatches * busiest), rate


@njit(cache=True, nogil=True)
def _devices_fit(
    choice, depth, devices, device_index, inventory, max_devices
):  # pragma: no cover - compiled
    total = 0
    for m in range(depth + 1):
        total += devices[choice[m]]
        same = 0
        for other in range(depth + 1):
            if device_index[choice[other]] == device_index[choice[m]]:
                same += devices[choice[other]]
        if same > inventory[device_index[choice[m]]]:
            return False
    return total <= max_devices


@njit(cache=True, nogil=True)
def _common_replicas(choice, replicas, device_index, device):  # pragma: no cover - compiled
    """Greatest common divisor of the replica counts of a device type (-1: of all groups)."""
    divisor = 0
    for p in choice:
        if device < 0 or device_index[p] == device:
            a, b = divisor, replicas[p]
            while b:
                a, b = b, a % b
            divisor = a
    return divisor


@njit(cache=True, nogil=True)
def _is_multiple(choice, replicas, smaller_batch):  # pragma: no cover - compiled
    """Whether all replica counts share a factor by which the batch may be divided."""
    divisor = _common_replicas(choice, replicas, replicas, -1)
    for factor in range(2, divisor + 1):
        if divisor % factor == 0 and smaller_batch[factor]:
            return True
    return False


@njit(cache=True, nogil=True)
def _sharing(choice, replicas, devices, device_index, node_devices):  # pragma: no cover
    """Bit set of the device types whose groups keep their moves inside nodes."""
    bits = 0
    for device in range(len(node_devices)):
        total = 0
        for p in choice:
            if device_index[p] == device:
                total += devices[p]
        if total:
            units = _common_replicas(choice, replicas, device_index, device)
            if total // units <= node_devices[device]:
                bits |= 1 << device
    return bits
