"""Network-safe Pareto frontier of one owner (paper section 5).

Point p dominates q when it needs the same devices and the same links and no stage of the owner
takes longer. Here that means: same device type, same devices per replica and same replicas, so
that rows, price, memory limit, transfers and node sharing are equal, and only the way operators
are cut differs. Points of other replica counts never dominate each other at one batch: fewer
replicas are cheaper but move and compute more rows.
"""

from __future__ import annotations

from numba import njit

TIE = 1e-9
"""Work differing by less than this part of the target counts as equal."""


@njit(cache=True, nogil=True)
def keep_undominated(  # pragma: no cover - compiled
    stage_counts, class_s, device_index, ways, replicas, tolerance_s, fits
):
    """Clear dominated points from ``fits``.

    Args:
        stage_counts: ``[S, classes + 2]`` distinct stages of the owner.
        class_s: ``[P, classes + 2]`` seconds of each class.
        device_index, ways, replicas: ``[P]``.
        tolerance_s: a later point must save more work than this to dominate an earlier one, so
            that near-ties are left to the search's stable order.
        fits: ``[P]`` points to choose from; dominated ones become False.
    """
    stages, columns = stage_counts.shape
    points = len(fits)
    keep = fits.copy()
    for p in range(points):
        for q in range(points):
            if p == q or not (fits[p] and keep[q]):
                continue
            if (
                device_index[p] != device_index[q]
                or ways[p] != ways[q]
                or replicas[p] != replicas[q]
            ):
                continue
            better, saved_s = True, 0.0
            for s in range(stages):
                difference = 0.0
                for c in range(columns):
                    difference += stage_counts[s, c] * (class_s[q, c] - class_s[p, c])
                if difference < 0.0:
                    better = False
                    break
                saved_s += difference
            if better and (saved_s > tolerance_s or p < q):
                keep[q] = False
    for p in range(points):  # a loop: numba takes seconds to compile `fits[:] = keep`
        fits[p] = keep[p]
