"""Small models and plans for tests of the runtime."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from weavejax.default_plans import model_ref
from weavejax.models.config import LayerKind, ModelConfig
from weavejax.models.loading import Model, load_model
from weavejax.models.random_source import RandomSource
from weavejax.plan import DeviceGroup, Plan, Template, Workload


@lru_cache
def tiny_model(name: str) -> Model:
    """A preset's architecture at toy size, random weights."""
    return load_model(name, random_weights=True, scale="tiny")


@lru_cache
def nine_heads() -> Model:
    """Llama with 9 query heads over 3 key/value heads, like SmolLM2: cut 3 ways."""
    config = ModelConfig(
        name="nine-heads",
        model_type="llama",
        vocab_size=330,
        hidden_size=72,
        layer_kinds=(LayerKind(attention="full"),) * 3,
        num_heads=9,
        num_kv_heads=3,
        head_dim=16,
        intermediate_size=96,
        max_position=256,
        tie_embeddings=True,
    )
    return Model(config=config, source=RandomSource(config))


def group(batch: int, replicas: int = 1, **ways: int) -> DeviceGroup:
    """A CPU group that holds ``batch`` rows over its replicas."""
    return DeviceGroup(device="cpu", replicas=replicas, resident_batch=batch // replicas, **ways)


def make_plan(
    model: Model,
    template: Template,
    *groups: DeviceGroup,
    microbatches: int = 1,
    context: int = 64,
) -> Plan:
    """A plan for a test model."""
    return Plan(
        model=model_ref(model.config),
        workload=Workload(context=context),
        template=template,
        groups=groups,
        microbatches=microbatches,
    )


def random_prompts(model: Model, lengths: tuple[int, ...], seed: int = 0) -> list[list[int]]:
    """Token ids of the given lengths."""
    random = np.random.default_rng(seed)
    vocab = model.config.vocab_size
    return [[int(token) for token in random.integers(3, vocab, size=n)] for n in lengths]
