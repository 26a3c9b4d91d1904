"""The plans predictions are judged by: two models, two contexts, five cuts, 1 to 4 microbatches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from weavejax.default_plans import TEMPLATES, model_ref
from weavejax.models.config import ModelConfig
from weavejax.models.loading import Model, load_model
from weavejax.models.presets import preset_config
from weavejax.models.random_source import RandomSource
from weavejax.plan import DeviceGroup, Plan, Template, Workload

BATCH = 12
"""Slots of every plan: divides into 1, 2, 3 and 4 microbatches."""
CONTEXTS = (128, 512)
WEAVES = {
    "weave in+core | out+ffn": (Template(cuts=(2,)), 2),
    "weave in | core+out | ffn": (Template(cuts=(1, 3)), 3),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One plan of a setting."""

    name: str
    template: Template
    groups: int
    microbatches: int

    def plan(self, config: ModelConfig, context: int) -> Plan:
        """The plan on ``cpu`` devices."""
        return Plan(
            model=model_ref(config),
            workload=Workload(context=context),
            template=self.template,
            groups=(DeviceGroup(device="cpu", resident_batch=BATCH),) * self.groups,
            microbatches=self.microbatches,
            policy=self.name,
        )


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A model at a context with the plans that compete there: all serve the same batch."""

    model: str
    context: int
    cases: tuple[Case, ...]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One plan."""

    model: str
    context: int
    plan: str
    microbatches: int
    predicted_s: float
    measured_s: float
    spread: float
    """of the measured round trips: interquartile range over median"""
    trace_overhead: float | None
    """None where no trace was taken"""

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.measured_s - 1


def small_gemma() -> Model:
    """Gemma 3 at a size that a core decodes in a tenth of a second: random weights.

    Its layers are those of the 1B model, two periods of five sliding and one full layer and one
    more, so that blocks are truncated; widths are about half.
    """
    config = preset_config("gemma-3-1b")
    config = dataclasses.replace(
        config,
        name="gemma-3-small",
        vocab_size=32_768,
        hidden_size=640,
        layer_kinds=config.layer_kinds[:13],
        head_dim=128,
        intermediate_size=2048,
        attention_scale=128**-0.5,
        sliding_window=256,
        embed_scale=640**0.5,
        eos_token_ids=(),
    )
    return Model(config=config, source=RandomSource(config))


MODELS: dict[str, Callable[[], Model]] = {
    "smollm2-135m-instruct": lambda: load_model("smollm2-135m-instruct"),
    "gemma-3-small": small_gemma,
}


def settings() -> tuple[Setting, ...]:
    """Twelve plans at the first setting, four at each of the others.

    Examples:
        >>> [(s.model, s.context, len(s.cases)) for s in settings()][:2]
        [('smollm2-135m-instruct', 128, 12), ('smollm2-135m-instruct', 512, 4)]
    """
    found = []
    for number, (model, context) in enumerate(
        (model, context) for model in MODELS for context in CONTEXTS
    ):
        cuts = _cuts(number)
        if number == 0:
            cases = [_case(name, cuts, micro) for name in cuts for micro in (1, 2, 4)]
        else:
            cases = [_case(name, cuts, 1 + (place + number) % 4) for place, name in enumerate(cuts)]
        found.append(Setting(model=model, context=context, cases=tuple(cases)))
    return tuple(found)


def _cuts(number: int) -> dict[str, tuple[Template, int]]:
    """Colocated, AFD, CAD and one of the other cuts in turn: template and groups."""
    named = {name: (template, template.num_stages) for name, template in TEMPLATES.items()}
    weave = list(WEAVES)[number % len(WEAVES)]
    return {**named, weave: WEAVES[weave]}


def _case(name: str, cuts: dict[str, tuple[Template, int]], microbatches: int) -> Case:
    template, groups = cuts[name]
    return Case(name=name, template=template, groups=groups, microbatches=microbatches)
