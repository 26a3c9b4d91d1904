"""One number for many timings."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def typical(timings: ArrayLike) -> np.ndarray:
    """Mean of the middle half of the timings: the interquartile mean, over the first axis.

    As robust as a median; but where a machine has two speeds a median is one of them, and the two
    sides of a comparison may each get another one.

    Args:
        timings: ``[samples, ...]``.

    Examples:
        >>> float(typical([1.0, 1.0, 2.0, 2.0, 2.0, 90.0, 1.0, 1.0]))
        1.5
    """
    ordered = np.sort(np.asarray(timings, dtype=float), axis=0)
    quarter = len(ordered) // 4
    return ordered[quarter : len(ordered) - quarter].mean(axis=0)
