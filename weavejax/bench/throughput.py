"""Offline throughput: all requests at once, the field's usual figures."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weavejax.bench.requests import BenchRequest
from weavejax.engine import Engine
from weavejax.request import SamplingParams


@dataclass(frozen=True, kw_only=True)
class Percentiles:
    """A distribution in seconds."""

    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Percentiles:
        """Of any number of values; all NaN for none."""
        if not values:
            return cls(mean_s=np.nan, p50_s=np.nan, p95_s=np.nan, p99_s=np.nan)
        p50, p95, p99 = (float(value) for value in np.percentile(values, (50, 95, 99)))
        return cls(mean_s=float(np.mean(values)), p50_s=p50, p95_s=p95, p99_s=p99)


@dataclass(frozen=True, kw_only=True)
class ThroughputResult:
    """What one run of requests came to."""

    requests: int
    failed: int
    duration_s: float
    input_tokens: int
    output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    time_to_first_token: Percentiles
    time_per_output_token: Percentiles
    """Mean time between the tokens of a request, after its first."""
    inter_token_latency: Percentiles
    """Every single gap between tokens of a request."""
    usd_per_million_output_tokens: float | None
    """From the plan's cluster prices; ``None`` without them."""

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def bench_throughput(
    engine: Engine,
    requests: Sequence[BenchRequest],
    *,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> ThroughputResult:
    """Submit every request at once and wait for all; end tokens are ignored.

    Args:
        engine: warm, because engines compile when they start.
        requests: what to send.
        progress: called with (what, done, total).
    """
    params = [SamplingParams(max_tokens=r.max_tokens, ignore_eos=True) for r in requests]
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    gaps: list[float] = []
    per_token: list[float] = []
    inputs = outputs = failed = done = 0
    start = time.perf_counter()
    for chunk in engine.stream([request.prompt for request in requests], params):
        now = time.perf_counter() - start
        index, count = chunk.index, len(chunk.token_ids)
        if count and index in last:
            gaps += [(now - last[index]) / count] * count
        if count:
            first.setdefault(index, now)
            last[index] = now
        if chunk.output is None:
            continue
        done += 1
        progress("requests", done, len(requests))
        failed += chunk.output.error is not None
        inputs += len(chunk.output.prompt_token_ids)
        outputs += (tokens := len(chunk.output.token_ids))
        if tokens > 1:
            per_token.append((last[index] - first[index]) / (tokens - 1))
    duration = time.perf_counter() - start
    return ThroughputResult(
        requests=len(requests),
        failed=failed,
        duration_s=duration,
        input_tokens=inputs,
        output_tokens=outputs,
        requests_per_s=(len(requests) - failed) / duration,
        output_tokens_per_s=outputs / duration,
        total_tokens_per_s=(inputs + outputs) / duration,
        time_to_first_token=Percentiles.of(list(first.values())),
        time_per_output_token=Percentiles.of(per_token),
        inter_token_latency=Percentiles.of(gaps),
        usd_per_million_output_tokens=_cost(engine, outputs / duration),
    )


def _cost(engine: Engine, tokens_per_s: float) -> float | None:
    """Dollars per million tokens at the rate measured, where every device has a price."""
    cluster = engine.plan.cluster
    if cluster is None or not tokens_per_s:
        return None
    usd_per_hour = 0.0
    for group in engine.plan.groups:
        price = cluster.device(group.device).usd_per_hour
        if price is None:
            return None
        usd_per_hour += price * group.num_devices
    return usd_per_hour / 3600 / tokens_per_s * 1e6
