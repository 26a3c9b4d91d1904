"""The H100 settings of figures 9 to 11: their cases, and the figures of merit they come down to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import mean
from typing import NamedTuple

from weavejax.models.config import ModelConfig
from weavejax.reproduce.scope import BASELINES, POLICIES, Bench, Scope, case
from weavejax.workbench.cases import MIB, Case, Outcome

CLUSTER = "h100-sxm:32"


class Key(NamedTuple):
    """One bar of figure 9."""

    model: str
    slo_s: float
    context: int
    policy: str


Outcomes = Mapping[Key, Outcome]


def cases(scope: Scope) -> dict[Key, Case]:
    """Every model, target, context and policy."""
    return {
        Key(model, slo_s, context, policy): case(scope, model, CLUSTER, context, slo_s, policy)
        for model in scope.models
        for slo_s in scope.slos_s(model)
        for context in scope.contexts
        for policy in POLICIES
    }


def base_outcomes(bench: Bench) -> dict[Key, Outcome]:
    """The settings as the paper describes them."""
    return bench.run(cases(bench.scope), "homogeneous H100 settings")


def gains(outcomes: Outcomes, model: str | None = None) -> dict[Key, float]:
    """Best feasible baseline over weave, for every setting; infinite where no baseline fits.

    NaN where weave has no plan.
    """
    found = {}
    for key in outcomes:
        if key.policy != "weave" or model not in (None, key.model):
            continue
        cost = outcomes[key].usd_per_million_tokens
        best = min(outcomes[key._replace(policy=name)].usd_per_million_tokens for name in BASELINES)
        found[key] = math.nan if math.isinf(cost) else best / cost
    return found


def cheapest_in(outcomes: Outcomes) -> int:
    """Settings in which weave beats every baseline."""
    return sum(gain > 1 for gain in gains(outcomes).values())


def infeasible_baselines(outcomes: Outcomes) -> int:
    """Baseline bars without a plan."""
    return sum(key.policy in BASELINES and o.plan is None for key, o in outcomes.items())


def stages(outcome: Outcome) -> float:
    """Stage occurrences of one decode step."""
    assert outcome.plan is not None and outcome.plan.prediction is not None
    return len(outcome.plan.prediction.stages)


def fractional_stages(outcome: Outcome) -> float:
    """The same, a truncated block counted as a fraction: K L / P, as in the paper."""
    assert outcome.plan is not None
    template, config = outcome.plan.template, ModelConfig.from_dict(outcome.plan.model.config)
    return template.num_stages * config.num_layers / template.layers


def internode_mib(outcome: Outcome) -> float:
    """MiB between nodes per output token."""
    assert outcome.plan is not None and outcome.plan.prediction is not None
    return outcome.plan.prediction.internode_bytes_per_token / MIB


def payload_mib(outcome: Outcome) -> float:
    """MiB between groups per output token, wherever the groups stand."""
    assert outcome.plan is not None and outcome.plan.prediction is not None
    return sum(move.bytes_per_row for move in outcome.plan.prediction.moves) / MIB


def copied_mib(outcome: Outcome) -> float:
    """MiB between groups per output token when every receiving device gets a copy of its own.

    That is what plain sends between the ranks of two replicas move. The least that must cross is
    one copy for a replica, and for each device only the heads it holds.
    """
    assert outcome.plan is not None and outcome.plan.prediction is not None
    groups = outcome.plan.groups
    return (
        sum(
            move.bytes_per_row * groups[move.destination_group].tensor_parallel
            for move in outcome.plan.prediction.moves
        )
        / MIB
    )


def occupancy(outcome: Outcome) -> float:
    """Price-weighted part of the time the devices compute."""
    assert outcome.plan is not None and outcome.plan.prediction is not None
    return outcome.plan.prediction.occupancy


def microbatches(outcome: Outcome) -> float:
    """Parts the batch is pipelined in."""
    assert outcome.plan is not None
    return outcome.plan.microbatches


FIGURES_OF_MERIT = {
    "stages": stages,
    "fractional_stages": fractional_stages,
    "internode_mib_per_token": internode_mib,
    "payload_mib_per_token": payload_mib,
    "copied_mib_per_token": copied_mib,
    "occupancy": occupancy,
    "microbatches": microbatches,
}


def mean_of(outcomes: Outcomes, model: str, policy: str, what: str) -> float | None:
    """Mean of a figure of merit over the settings that have a plan; None where none has."""
    values = [
        FIGURES_OF_MERIT[what](outcome)
        for key, outcome in outcomes.items()
        if key.model == model and key.policy == policy and outcome.plan is not None
    ]
    return mean(values) if values else None


def batch_ratio(outcomes: Outcomes, model: str, policy: str) -> float | None:
    """Figure 11: rows per device at the relaxed target over weave's, mean over contexts."""
    relaxed_s = max(key.slo_s for key in outcomes if key.model == model)
    ratios = []
    for key, outcome in outcomes.items():
        if (key.model, key.slo_s, key.policy) == (model, relaxed_s, policy):
            weave = outcomes[key._replace(policy="weave")].plan
            if outcome.plan is not None and weave is not None:
                mine = outcome.plan.batch / outcome.plan.num_devices
                ratios.append(mine * weave.num_devices / weave.batch)
    return mean(ratios) if ratios else None
