"""Numbers of a comparison in words."""

from __future__ import annotations

import math
from collections.abc import Iterable


def gain_label(gain: float) -> str:
    """``1.23x``; a gain over nothing that fits, or of nothing that fits, in words.

    Examples:
        >>> gain_label(1.234), gain_label(float("inf")), gain_label(float("nan"))
        ('1.23x', 'only weave', 'no plan')
    """
    if math.isnan(gain):
        return "no plan"
    return "only weave" if math.isinf(gain) else f"{gain:.2f}x"


def ratio_range(values: Iterable[float]) -> str:
    """``0.92 to 1.07``, and how often there was nothing to compare with.

    Examples:
        >>> ratio_range([1.0, 1.5, float("inf")])
        '1.00 to 1.50 (1 without a feasible baseline)'
    """
    values = list(values)
    finite = [v for v in values if math.isfinite(v)]
    alone = sum(v == math.inf for v in values)
    note = f" ({alone} without a feasible baseline)" if alone else ""
    if not finite:
        return f"nothing to compare{note}"
    return f"{min(finite):.2f} to {max(finite):.2f}{note}"


def finite_max(values: Iterable[float]) -> float | None:
    """The largest finite value; None where there is none."""
    return max((v for v in values if math.isfinite(v)), default=None)


def finite_min(values: Iterable[float]) -> float | None:
    """The smallest finite value; None where there is none."""
    return min((v for v in values if math.isfinite(v)), default=None)
