"""A mean context is not a distribution: plan for the mean, plan for the tail, say the difference.

The slots of a replica hold requests of different contexts, and what binds is their sum. With b
slots the sum spreads by 1/sqrt(b) of a single request, so the tail that matters is the one of
*batches*: the mean context of b requests that is exceeded with a small probability.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weavejax.meshes.cluster import as_cluster
from weavejax.models.presets import resolve_config
from weavejax.plan import Plan
from weavejax.planner import SearchLimits, evaluate
from weavejax.planner.api import ClusterLike, ModelLike, resolve_profile
from weavejax.planner.latency import LatencyProfile
from weavejax.workbench.cases import Case, Outcome, record, solve
from weavejax.workbench.table import Table

POINTS = 4096
"""Quantiles that stand for a lognormal distribution."""

ROUNDS = 8
"""Times the tail plan's own batch may change its tail."""


@dataclass(frozen=True, eq=False)
class Lengths:
    """Contexts in tokens with weights: how long the requests are that decode at one moment.

    Raises:
        ValueError: no length, or one that is not positive and finite; weights likewise.

    Examples:
        >>> lengths = Lengths([1000, 3000])
        >>> lengths.mean, lengths.quantile(0.9)
        (2000.0, 3000.0)
    """

    tokens: ArrayLike
    weights: ArrayLike | None = None

    def __post_init__(self) -> None:
        tokens = np.asarray(self.tokens, dtype=np.float64).ravel()
        weights = (
            np.ones_like(tokens)
            if self.weights is None
            else np.asarray(self.weights, dtype=np.float64).ravel()
        )
        if not tokens.size or weights.shape != tokens.shape:
            raise ValueError(
                f"a distribution needs lengths and as many weights, got {tokens.size} and "
                f"{weights.size}"
            )
        for what, values in (("lengths", tokens), ("weights", weights)):
            if not (np.isfinite(values).all() and (values > 0).all()):
                raise ValueError(f"{what} must be positive and finite, got {values.min()} at least")
        order = np.argsort(tokens, kind="stable")
        object.__setattr__(self, "tokens", tokens[order])
        object.__setattr__(self, "weights", weights[order] / weights.sum())

    @classmethod
    def lognormal(cls, mean: float, sigma: float) -> Lengths:
        """Lengths whose logarithm is normal with spread ``sigma``, and the given mean in tokens.

        Raises:
            ValueError: a mean that is not positive, or a negative spread.

        Examples:
            >>> round(Lengths.lognormal(8192, 1.0).mean)
            8192
        """
        if not (math.isfinite(mean) and mean > 0 and math.isfinite(sigma) and sigma >= 0):
            raise ValueError(
                f"a lognormal needs a positive mean and a spread of at least 0, got {mean} and "
                f"{sigma}"
            )
        normal = NormalDist()
        steps = [normal.inv_cdf((i + 0.5) / POINTS) for i in range(POINTS)]
        return cls(np.exp(sigma * np.array(steps))).rescaled(mean)

    @property
    def _tokens(self) -> NDArray[np.float64]:
        return np.asarray(self.tokens)

    @property
    def _weights(self) -> NDArray[np.float64]:
        return np.asarray(self.weights)

    @property
    def mean(self) -> float:
        """Tokens."""
        return float(self._tokens @ self._weights)

    @property
    def deviation(self) -> float:
        """Standard deviation, tokens."""
        return math.sqrt(max(0.0, float(self._tokens**2 @ self._weights) - self.mean**2))

    def quantile(self, share: float) -> float:
        """The length that ``share`` of the requests do not exceed, tokens.

        Raises:
            ValueError: a share outside (0, 1].
        """
        _check_share(share)
        place = int(np.searchsorted(self._weights.cumsum(), share - 1e-12))
        return float(self._tokens[min(place, len(self._tokens) - 1)])

    def rescaled(self, mean: float) -> Lengths:
        """The same shape stretched to another mean, as the paper does for 8K, 32K and 128K."""
        if not (math.isfinite(mean) and mean > 0):
            raise ValueError(f"a mean must be positive and finite, got {mean}")
        return Lengths(self._tokens * (mean / self.mean), self._weights)

    def batch_mean(self, rows: int, share: float) -> float:
        """The mean length that ``share`` of all batches of ``rows`` requests do not exceed.

        Exact for one row; for more, drawn: 20,000 batches from a fixed seed below 64 rows, and
        the normal distribution of a sum from there on.

        Examples:
            >>> lengths = Lengths.lognormal(8192, 1.0)
            >>> lengths.batch_mean(1, 0.99) > lengths.batch_mean(16, 0.99) > lengths.mean
            True
        """
        _check_share(share)
        if rows < 1:
            raise ValueError(f"a batch has at least one row, got {rows}")
        if rows == 1 or share == 1:
            return self.quantile(share)
        if rows >= 64:
            return self.mean + NormalDist().inv_cdf(share) * self.deviation / math.sqrt(rows)
        random = np.random.default_rng(0)
        places = np.searchsorted(self._weights.cumsum(), random.random((20_000, rows)))
        sums = self._tokens[np.minimum(places, len(self._tokens) - 1)].mean(axis=1)
        return float(np.quantile(sums, share))


def _check_share(share: float) -> None:
    if not 0 < share <= 1:
        raise ValueError(f"a share lies above 0 and at most at 1, got {share}")


@dataclass(frozen=True, kw_only=True)
class LengthsAnswer:
    """Plans for the mean and for the tail, and the first one met by the tail."""

    mean: Outcome
    tail: Outcome
    tail_context: int
    """Mean context of the batches the tail plan holds, at the share asked for."""
    fits_tail: bool | None
    """Whether the mean plan still fits its memory then; None without a mean plan."""
    meets_tail: bool | None
    """Whether it still meets the target."""
    table: Table

    def describe(self) -> str:
        """One or two sentences."""
        if self.mean.plan is None:
            return f"no plan at the mean: {self.mean.reason}"
        memory = "fits" if self.fits_tail else "does not fit"
        target = "meets" if self.meets_tail else "misses"
        text = (
            f"the plan for the mean {memory} the memory and {target} the target when its batch is "
            "in the tail"
        )
        if self.tail.plan is None:
            return f"{text}; there is no plan for the tail: {self.tail.reason}"
        extra = self.tail.usd_per_million_tokens / self.mean.usd_per_million_tokens - 1
        return (
            f"{text}; the plan for the tail ({self.tail_context:,} tokens) costs {extra:+.1%} a "
            "token, at the tail's contexts"
        )


def plan_for_lengths(
    model: ModelLike,
    cluster: ClusterLike,
    lengths: Lengths,
    tpot_slo_s: float,
    *,
    tail: float = 0.99,
    policy: str = "weave",
    limits: SearchLimits | None = None,
    profile: LatencyProfile | str | None = None,
) -> LengthsAnswer:
    """Plan at the mean context, and at the one that a batch reaches in its tail.

    The tail context depends on the rows of a replica, and these on the plan: plan, take the tail
    of its smallest replica's batch, and plan again until it stands still.

    Args:
        lengths: contexts of the requests that decode at one moment.
        tail: share of batches the plan must hold; the rest would preempt or slow down.

    Raises:
        ValueError: a tail outside (0, 1].
    """
    _check_share(tail)
    latencies = resolve_profile(profile)
    case = Case(
        config=resolve_config(model),
        cluster=as_cluster(cluster),
        context=max(1, round(lengths.mean)),
        tpot_slo_s=tpot_slo_s,
        policy=policy,
        limits=limits or SearchLimits(),
        profile=latencies,
    )
    at_mean = solve(case)
    context = _tail_context(lengths, at_mean.plan, tail)
    at_tail, seen = at_mean, {case.context}
    tail_case = case
    for _ in range(ROUNDS):
        tail_case = dataclasses.replace(case, context=context)
        at_tail = solve(tail_case)
        needed = _tail_context(lengths, at_tail.plan, tail)
        if at_tail.plan is None or needed <= context or needed in seen:
            break
        seen.add(context)
        context = needed
    fits, meets, stressed = _stressed(at_mean.plan, lengths, tail, latencies)
    rows = [
        {"planned for": "mean"} | record(case, at_mean),
        {"planned for": f"mean, met by the {tail:.0%} batch"} | record(case, at_mean) | stressed,
        {"planned for": f"{tail:.0%} batch"} | record(tail_case, at_tail),
    ]
    columns = ("planned for", "context_tokens", "usd_per_million_tokens", "round_trip_time_ms",
               "batch", "devices", "groups", "status")  # fmt: skip
    return LengthsAnswer(
        mean=at_mean,
        tail=at_tail,
        tail_context=tail_case.context,
        fits_tail=fits,
        meets_tail=meets,
        table=Table(records=tuple({c: row[c] for c in columns} for row in rows)),
    )


def _tail_context(lengths: Lengths, plan: Plan | None, tail: float) -> int:
    """Mean context of the fullest of a plan's smallest batches: those one device group holds."""
    rows = 1 if plan is None else min(group.resident_batch for group in plan.groups)
    return max(1, math.ceil(lengths.batch_mean(rows, tail)))


def _stressed(
    plan: Plan | None, lengths: Lengths, tail: float, profile: LatencyProfile
) -> tuple[bool | None, bool | None, dict[str, object]]:
    """Whether a plan fits and meets its target when its batch is in the tail."""
    if plan is None:
        return None, None, {}
    context = _tail_context(lengths, plan, tail)
    workload = dataclasses.replace(plan.workload, context=context)
    prediction = evaluate(plan.replace(workload=workload, prediction=None), profile)
    fits = all(group.needed_bytes <= group.memory_bytes for group in prediction.groups)
    slo_s = plan.workload.tpot_slo_s
    meets = slo_s is None or prediction.round_trip_time_s <= slo_s
    status = (
        "ok"
        if fits and meets
        else " and ".join(word for word, fine in (("memory", fits), ("latency", meets)) if not fine)
    )
    return (
        fits,
        meets,
        {
            "context_tokens": context,
            "usd_per_million_tokens": prediction.usd_per_million_tokens,
            "round_trip_time_ms": prediction.round_trip_time_s * 1e3,
            "status": status,
        },
    )
