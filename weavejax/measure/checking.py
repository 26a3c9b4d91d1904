"""``weavejax check``: whether a plan computes what the colocated plan does, and if not, where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from weavejax.default_plans import default_plan
from weavejax.measure.forced import Forced, force, logits_function
from weavejax.measure.tape import record_tape
from weavejax.models.loading import Model
from weavejax.plan import Plan
from weavejax.runtime.executor import Executor

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Disagreement:
    """A position at which the two sides' best tokens differ."""

    slot: int
    position: int
    expected: int
    found: int
    margin: float
    """The reference's logit of its own choice over that of the other's: small in a near-tie."""
    near_tie: bool


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Logits of a plan beside a reference's, along the same tokens."""

    reference: str
    positions: int
    max_difference: float
    """Largest absolute difference of a logit."""
    allowed: float
    """The tolerance times the reference's largest logit."""
    disagreements: tuple[Disagreement, ...]

    @property
    def good(self) -> bool:
        """No difference beyond the tolerance, and no disagreement that is not a near-tie."""
        return self.max_difference <= self.allowed and all(
            found.near_tie for found in self.disagreements
        )


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """The first operator whose output differs."""

    operator: str
    group: int
    phase: str
    difference: float
    """Largest difference of an output over the largest output."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """Everything a check found."""

    comparisons: tuple[Comparison, ...]
    sampling_errors: int
    """Tokens that the plan's own sampling chose otherwise than its logits say, near-ties aside."""
    culprit: Culprit | None

    @property
    def good(self) -> bool:
        return not self.sampling_errors and all(found.good for found in self.comparisons)


def check_plan(
    model: Model,
    plan: Plan,
    tokens: np.ndarray,
    *,
    prompt: int,
    tolerance: float = 1e-3,
    theirs: np.ndarray | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Check:
    """Compare a plan with the colocated plan, and with logits from elsewhere if given.

    Args:
        model: what to run.
        plan: how; its groups may share the devices there are.
        tokens: ``[slots, length]`` int32, what every slot is forced along.
        prompt: tokens that are prefilled; the rest is decoded.
        tolerance: allowed difference as a part of the largest value.
        theirs: ``[slots, length, vocab]`` logits of transformers.
        progress: called with (what, done, total).
    """
    executors = [
        Executor(model, each, oversubscribe=True, chunks=(min(prompt, 64),), progress=progress)
        for each in (plan, _colocated(model, plan))
    ]
    return check_executors(
        model, executors[0], executors[1], tokens, prompt=prompt, tolerance=tolerance, theirs=theirs
    )


def check_executors(
    model: Model,
    executor: Executor,
    reference: Executor,
    tokens: np.ndarray,
    *,
    prompt: int,
    tolerance: float,
    theirs: np.ndarray | None = None,
) -> Check:
    """:func:`check_plan` between running executors of the same slots and context."""
    ours, colocated = (force(side, model, tokens, prompt) for side in (executor, reference))
    sides = [("colocated", colocated.logits)]
    if theirs is not None:
        sides.append(("transformers", theirs))
    comparisons = tuple(
        compare_logits(name, ours.logits, logits, tolerance) for name, logits in sides
    )
    culprit = None
    if not comparisons[0].good:
        few = tokens[:, : min(prompt, executor.chunks[-1]) + 1]
        culprit = find_culprit(model, executor, reference, few, tolerance)
    return Check(
        comparisons=comparisons,
        sampling_errors=_sampling_errors(ours, prompt, comparisons[0].allowed),
        culprit=culprit,
    )


def compare_logits(name: str, ours: np.ndarray, theirs: np.ndarray, tolerance: float) -> Comparison:
    """Every position of every slot.

    Examples:
        >>> a = np.array([[[0.0, 1.0, 3.0]]])
        >>> found = compare_logits("b", a, a + np.array([0.0, 2.0005, 0.0]), 1e-3)
        >>> found.good, found.disagreements[0].near_tie
        (False, True)
    """
    allowed = tolerance * float(np.abs(theirs).max())
    best, reference = ours.argmax(-1), theirs.argmax(-1)
    disagreements = []
    for slot, position in np.argwhere(best != reference):
        here = theirs[slot, position]
        expected, found = int(reference[slot, position]), int(best[slot, position])
        margin = float(here[expected] - here[found])
        disagreements.append(
            Disagreement(
                slot=int(slot),
                position=int(position),
                expected=expected,
                found=found,
                margin=margin,
                near_tie=margin <= 2 * allowed,
            )
        )
    return Comparison(
        reference=name,
        positions=best.size,
        max_difference=float(np.abs(ours - theirs).max()),
        allowed=allowed,
        disagreements=tuple(disagreements),
    )


def find_culprit(
    model: Model, executor: Executor, reference: Executor, tokens: np.ndarray, tolerance: float
) -> Culprit | None:
    """The first operator, in model order and prefill before decode, whose output differs.

    ``None`` when every operator agrees by itself: then the fault is in how stages are put
    together.
    """
    tapes = [record_tape(side, model, tokens) for side in (executor, reference)]
    last: dict[str, np.ndarray] = {}
    for ours, theirs in zip(*tapes, strict=True):
        last = theirs.tensors
        for name, expected in last.items():
            difference = _difference(ours.tensors[name], expected)
            if not difference <= tolerance:  # NaN is a difference
                return Culprit(
                    operator=ours.operator,
                    group=ours.group,
                    phase=ours.phase,
                    difference=difference,
                )
    [x] = last.values()
    logits = [logits_function(side, model)(x) for side in (executor, reference)]
    difference = _difference(*logits)
    if difference <= tolerance:
        return None
    owner = executor.stages[-1].owner
    return Culprit(operator="head", group=owner, phase="decode", difference=difference)


def _difference(ours: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference over the largest value."""
    return float(np.abs(ours - expected).max()) / max(float(np.abs(expected).max()), 1e-30)


def _sampling_errors(ours: Forced, prompt: int, allowed: float) -> int:
    logits = ours.logits[:, prompt:]
    chosen = np.take_along_axis(logits, ours.chosen[..., None], -1)[..., 0]
    return int((logits.max(-1) - chosen > 2 * allowed).sum())


def _colocated(model: Model, plan: Plan) -> Plan:
    return default_plan(
        model.config,
        "colocated",
        device=plan.groups[0].device,
        slots=plan.batch,
        context=plan.workload.context,
        microbatches=plan.microbatches,
    )
