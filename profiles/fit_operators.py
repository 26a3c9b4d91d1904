"""Fits the analytic model of a device to operators that were timed whole, with optax.

An operator's analytic time is the sum of its kernels', each max(floor, bytes / attained bandwidth,
FLOPs / attained FLOP/s). The floors and attained fractions of every kernel kind are fitted
together, since no kernel was timed by itself. They then answer for models and parallelism that
were not measured on the device.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax

from weavejax.models.config import ModelConfig
from weavejax.models.sequence import operator_sequence
from weavejax.models.specs import Attention, DeltaNet, Experts, Gemm, OperatorSpec
from weavejax.plan import Parallelism
from weavejax.profiles.analytic import DEFAULT_EFFICIENCIES
from weavejax.profiles.estimator import Profile
from weavejax.profiles.operator_key import operator_key
from weavejax.profiles.operator_times import FIRST
from weavejax.profiles.schema import DeviceProfile, Efficiency
from weavejax.profiles.work import kernel_work

Term = tuple[str, float, float]
"""Kernel kind, FLOPs and bytes of one launch."""
_STEPS, _LEARNING_RATE = 1500, 0.03


@dataclass(frozen=True, kw_only=True)
class Residual:
    """How far the fitted model is from the operators of one kind."""

    device: str
    kind: str
    points: int
    median: float
    """of |analytic / measured - 1|"""
    p95: float

    def __str__(self) -> str:
        return (
            f"{self.device} {self.kind}: {self.points} points, median error {self.median:.1%}, "
            f"p95 {self.p95:.1%}"
        )


def fit_profile(profile: Profile) -> tuple[Profile, list[Residual]]:
    """The profile with fitted efficiencies for every device that has timed operators.

    Raises:
        ValueError: no device has any.
    """
    devices, residuals = dict(profile.data.devices), []
    for name, device in devices.items():
        samples = list(_samples(device))
        if samples:
            efficiencies, found = _fit(device, samples)
            devices[name] = dataclasses.replace(
                device, efficiencies={**device.efficiencies, **efficiencies}
            )
            residuals += found
    if not residuals:
        raise ValueError(
            f"profile {profile.name!r} has no operators to fit to: measure some with "
            "weavejax profile MODEL -o FILE"
        )
    return Profile(dataclasses.replace(profile.data, devices=devices)), residuals


def operator_terms(
    operator: OperatorSpec, rows: float, context: float, element_bytes: int
) -> list[Term]:
    """FLOPs and bytes of every kernel of an unsharded operator.

    Examples:
        >>> from weavejax.models import operator_sequence, preset_config
        >>> ffn = operator_sequence(preset_config("smollm2-135m-instruct"))[4]
        >>> [kind for kind, _, _ in operator_terms(ffn, 8, 256, 4)]
        ['elementwise', 'gemm', 'elementwise', 'gemm', 'elementwise']
    """
    terms: list[Term] = []
    for kernel in operator.kernels:
        match kernel:
            case Gemm():
                kind, shape, sizes = "gemm", (), (rows, kernel.local(1)[1], kernel.local(1)[0])
            case Attention():
                kind, sizes = "attention", (rows, context)
                shape = (kernel.q_heads, kernel.kv_heads, kernel.head_dim, kernel.window or 0)
            case Experts():
                kind, sizes = "experts", (rows,)
                shape = (
                    kernel.hidden,
                    kernel.intermediate,
                    kernel.top_k,
                    kernel.num_experts,
                    1,
                    1,
                )
            case DeltaNet():
                kind, sizes = "delta_net", (rows,)
                shape = (kernel.key_heads, kernel.value_heads, kernel.key_dim, kernel.value_dim)
            case _:
                terms.append(("elementwise", 0.0, float(element_bytes * rows * kernel.elements)))
                continue
        flop, traffic = kernel_work(kind, shape, sizes, element_bytes)
        terms.append((kind, float(flop), float(traffic)))
    return terms


@dataclass(frozen=True)
class _Sample:
    """One measured point without parallelism."""

    kind: str
    """of the operator"""
    terms: list[Term]
    time_s: float
    overhead_s: float
    """what of it is the stage's"""


def _samples(device: DeviceProfile) -> Iterator[_Sample]:
    overhead_s = device.stage_overhead_s
    seen: set[str] = set()
    for fields in json.loads(device.attributes.get("models", "{}")).values():
        for op in operator_sequence(ModelConfig.from_dict(fields)):
            key = operator_key(op, Parallelism())
            times = device.operators.get(key)
            if times is None or key in seen:
                continue
            seen.add(key)
            for i, j in np.argwhere(np.isfinite(times.time_s[..., FIRST])):
                seconds = float(times.time_s[i, j, FIRST])
                terms = operator_terms(
                    op, float(times.rows[i]), float(times.contexts[j]), device.element_bytes
                )
                yield _Sample(op.kind, terms, seconds, overhead_s if op.layer is not None else 0.0)


def _fit(
    device: DeviceProfile, samples: list[_Sample]
) -> tuple[dict[str, Efficiency], list[Residual]]:
    kinds = sorted({kind for sample in samples for kind, _, _ in sample.terms})
    longest = max(len(sample.terms) for sample in samples)
    which = np.full((len(samples), longest), -1)
    work = np.zeros((2, len(samples), longest))
    for row, sample in enumerate(samples):
        for column, (kind, flop, traffic) in enumerate(sample.terms):
            which[row, column] = kinds.index(kind)
            work[:, row, column] = (
                traffic / device.bandwidth_bytes_per_s,
                flop / device.bf16_flop_per_s,
            )
    seconds = np.array([sample.time_s for sample in samples])
    overhead = jnp.asarray([sample.overhead_s for sample in samples], jnp.float32)
    there, index = jnp.asarray(which >= 0), jnp.asarray(np.maximum(which, 0))
    memory, compute = (jnp.asarray(part, jnp.float32) for part in work)
    target = jnp.asarray(np.log(seconds), jnp.float32)

    def model_s(values: dict[str, jax.Array]) -> jax.Array:
        floor, bandwidth, flop = (
            jnp.exp(values[name])[index] for name in ("floor", "bandwidth", "flop")
        )
        each = jnp.maximum(floor, jnp.maximum(memory / bandwidth, compute / flop))
        return overhead + jnp.where(there, each, 0.0).sum(1)

    def loss(values: dict[str, jax.Array]) -> jax.Array:
        return jnp.abs(jnp.log(model_s(values)) - target).mean()

    start = [DEFAULT_EFFICIENCIES[kind] for kind in kinds]
    values = {
        "floor": jnp.log(jnp.array([max(e.floor_s, 1e-6) for e in start])),
        "bandwidth": jnp.log(jnp.array([e.bandwidth for e in start])),
        "flop": jnp.log(jnp.array([e.flop for e in start])),
    }
    values = _descend(loss, values)
    error = np.abs(np.asarray(model_s(values)) / seconds - 1)
    efficiencies = {
        kind: Efficiency(
            **{
                field: float(jnp.exp(values[name][place]))
                for name, field in (
                    ("floor", "floor_s"),
                    ("bandwidth", "bandwidth"),
                    ("flop", "flop"),
                )
            }
        )
        for place, kind in enumerate(kinds)
    }
    return efficiencies, _residuals(device.device, [sample.kind for sample in samples], error)


def _descend(loss, values: dict[str, jax.Array]) -> dict[str, jax.Array]:
    optimiser = optax.adam(optax.cosine_decay_schedule(_LEARNING_RATE, _STEPS))

    @jax.jit
    def run(values: dict[str, jax.Array]) -> dict[str, jax.Array]:
        def step(_, carry):
            values, state = carry
            updates, state = optimiser.update(jax.grad(loss)(values), state)
            return optax.apply_updates(values, updates), state

        return jax.lax.fori_loop(0, _STEPS, step, (values, optimiser.init(values)))[0]

    # optax mixes its step counter with floats, which strict promotion forbids
    with jax.numpy_dtype_promotion("standard"):
        return run(values)


def _residuals(device: str, kinds: list[str], error: np.ndarray) -> list[Residual]:
    found = []
    for kind in dict.fromkeys(kinds):
        mine = error[[one == kind for one in kinds]]
        found.append(
            Residual(
                device=device,
                kind=kind,
                points=len(mine),
                median=float(np.median(mine)),
                p95=float(np.percentile(mine, 95)),
            )
        )
    return found
