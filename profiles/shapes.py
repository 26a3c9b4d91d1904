"""Which measured shape answers for a wanted one, and by which stated rule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weavejax.profiles.schema import KernelTable


@dataclass(frozen=True, kw_only=True)
class AttentionRule:
    """A measured attention shape standing in for a wanted one."""

    shape: tuple[int, ...]
    """(query heads, key/value heads, head_dim, window) of the table"""
    context: int
    batch_factor: int = 1
    """attention(batch, f q, f kv) = attention(f batch, q, kv): a head group is a row"""
    exact: bool = False
    """the wanted shape itself was measured"""
    rescale: bool = False
    """multiply by the ratio of the analytic models of the two shapes"""


def attention_rule(
    table: KernelTable, shape: tuple[int, ...], context: int
) -> AttentionRule | None:
    """The first rule that applies, or None for an empty table.

    1. the shape itself (a window at least as long as the context is full attention);
    2. the same window with heads folded into the batch;
    3. a window w as full attention at context min(w, context), heads folded if need be;
    4. the nearest full-attention shape, scaled by the analytic model.
    """
    q_heads, kv_heads, head_dim, window = shape
    if not len(table.shapes):
        return None
    full_context = min(context, window) if window else context
    windowed = bool(window) and window < context
    tries = [(window, context, True)] if windowed else []
    tries.append((0, full_context, not windowed))
    for tried, length, faithful in tries:
        factor = 1
        while q_heads % factor == 0 and kv_heads % factor == 0:
            candidate = (q_heads // factor, kv_heads // factor, head_dim, tried)
            if table.shape_index(*candidate) is not None:
                return AttentionRule(
                    shape=candidate,
                    context=length,
                    batch_factor=factor,
                    exact=faithful and factor == 1,
                )
            factor *= 2
    full = table.shapes[table.shapes[:, 3] == 0]
    if not len(full):
        return None
    found = nearest_shape(full, (q_heads, kv_heads, head_dim, 0))
    return AttentionRule(shape=found, context=full_context, rescale=True)


def nearest_shape(shapes: np.ndarray, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with the smallest sum of log ratios; the first one on a tie.

    >>> nearest_shape(np.array([[2], [8]]), (4,))
    (2,)
    """
    distance = np.abs(np.log(np.maximum(shapes, 0.5) / np.maximum(np.array(wanted), 0.5))).sum(1)
    return tuple(map(int, shapes[int(distance.argmin())]))
