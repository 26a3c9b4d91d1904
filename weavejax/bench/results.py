"""Results of a comparison in a file, and what has become worse since."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import jax

from weavejax.bench.compare import ComparedPoint

FORMAT = "weavejax.bench-compare/1"


def write_results(path: str | Path, model: str, points: Sequence[ComparedPoint]) -> None:
    """Points with what they were measured on."""
    content = {
        "format": FORMAT,
        "model": model,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "machine": platform.machine(),
        "points": [point.to_dict() for point in points],
    }
    Path(path).write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def read_results(path: str | Path) -> list[ComparedPoint]:
    """What :func:`write_results` wrote.

    Raises:
        ValueError: another kind of file.
    """
    try:
        content = json.loads(Path(path).read_text("utf-8"))
        if content["format"] != FORMAT:
            raise ValueError
        return [ComparedPoint(**point) for point in content["points"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} must hold results of `weavejax bench compare --output` ({FORMAT})"
        ) from error


def compare_results(
    before: Sequence[ComparedPoint], now: Sequence[ComparedPoint], tolerance: float
) -> list[str]:
    """What is worse than before by more than a part of it, in words.

    Ratios are compared, never times: of the first plan to transformers' best, and of the other
    plans to the first. Work that only one of both holds is left out.

    Examples:
        >>> slow, fast = (
        ...     ComparedPoint(work="decode", batch=1, tokens=8, times_s={"colocated": 1, "afd": t})
        ...     for t in (2.0, 1.1))
        >>> compare_results([fast], [slow], 0.25)
        ['decode, batch 1, 8 tokens: afd takes 2.00 of the time of colocated, was 1.10']
        >>> compare_results([slow], [fast], 0.25)
        []
    """
    earlier = {(p.work, p.batch, p.tokens): p for p in before}
    worse = []
    for point in now:
        old = earlier.get((point.work, point.batch, point.tokens))
        if old is None:
            continue
        where = f"{point.work}, batch {point.batch}, {point.tokens} tokens"
        first = next(iter(point.times_s))
        if point.ratio and old.ratio and point.ratio < old.ratio * (1 - tolerance):
            worse.append(
                f"{where}: {first} has {point.ratio:.2f} times the speed of transformers, "
                f"was {old.ratio:.2f}"
            )
        for name in point.times_s:
            if name == first or name.startswith("transformers") or name not in old.times_s:
                continue
            if point.over_first(name) > old.over_first(name) * (1 + tolerance):
                worse.append(
                    f"{where}: {name} takes {point.over_first(name):.2f} of the time of {first}, "
                    f"was {old.over_first(name):.2f}"
                )
    return worse
