"""Random models, templates and plans for property tests."""

from __future__ import annotations

import dataclasses
import functools
import math

from hypothesis import strategies as st

from weavejax.default_plans import model_ref
from weavejax.meshes.cluster import Cluster
from weavejax.models import ModelConfig, preset_config
from weavejax.models.tiny import tiny_config
from weavejax.plan import DeviceGroup, Plan, ProfileRef, Template, Workload
from weavejax.prediction import GroupPrediction, MovePrediction, Prediction, StagePrediction

ARCHITECTURES = ("llama-3.1-8b", "gemma-3-4b", "qwen3-next-80b-a3b", "gpt-oss-20b")
"""One preset of every kind of layer pattern: uniform, sliding, linear, alternating with experts."""

_TIMES_S = st.floats(1e-6, 10.0)
_BYTES = st.integers(0, 2**50)
_NAMES = st.text(st.characters(codec="utf-8"), max_size=12)


@functools.cache
def architecture(name: str, num_layers: int | None = None) -> ModelConfig:
    """A preset in small sizes, its layer pattern cut or repeated to ``num_layers``."""
    config = tiny_config(preset_config(name))
    if num_layers is None:
        return config
    kinds = config.layer_kinds * (num_layers // config.num_layers + 1)
    return dataclasses.replace(config, layer_kinds=kinds[:num_layers])


@st.composite
def configs(draw, min_layers: int = 1, max_layers: int = 8) -> ModelConfig:
    layers = draw(st.integers(min_layers, max_layers))
    return architecture(draw(st.sampled_from(ARCHITECTURES)), layers)


@st.composite
def templates(draw, num_groups: int = 1, max_layers: int = 3) -> Template:
    """Any template whose stages divide over ``num_groups``."""
    layers = draw(st.integers(1, max_layers))
    operators = 4 * layers
    stages = num_groups * draw(st.integers(1, operators // num_groups))
    positions = st.integers(1, operators - 1)
    cuts = sorted(draw(st.sets(positions, min_size=stages - 1, max_size=stages - 1)))
    offset = draw(st.integers(0, operators - max(cuts, default=1)))
    return Template(layers=layers, cuts=tuple(cuts), offset=offset)


@st.composite
def device_groups(
    draw, count: int, microbatches: int, max_replicas: int = 3
) -> tuple[DeviceGroup, ...]:
    """Groups of different shapes with one global batch that divides over all of them."""
    shapes = []
    for _ in range(count):
        ways = draw(st.sampled_from((1, 2, 4)))
        shapes.append(
            {
                "device": draw(st.sampled_from(("cpu", "h100-sxm", "l40s"))),
                "replicas": draw(st.integers(1, max_replicas)),
                "tensor_parallel": ways,
                "expert_parallel": draw(st.sampled_from((1, ways))),
                "attention_data_parallel": draw(st.sampled_from((1, ways))),
            }
        )
    parts = math.lcm(*(s["replicas"] * s["attention_data_parallel"] for s in shapes))
    batch = microbatches * parts * draw(st.integers(1, 3))
    return tuple(
        DeviceGroup(resident_batch=batch // shape["replicas"], **shape) for shape in shapes
    )


@st.composite
def predictions(draw) -> Prediction:
    sources = st.sampled_from(("measured", "derived", "analytic"))
    fractions = st.floats(0, 1)
    groups = st.builds(
        GroupPrediction,
        weight_bytes=_BYTES,
        cache_bytes=_BYTES,
        buffer_bytes=_BYTES,
        reserve_bytes=_BYTES,
        memory_bytes=_BYTES,
        busy_fraction=fractions,
    )
    stages = st.builds(
        StagePrediction,
        occurrence=st.integers(0, 9),
        group=st.integers(0, 2),
        operators=_NAMES,
        time_s=_TIMES_S,
        source=sources,
        measured_fraction=fractions,
    )
    moves = st.builds(
        MovePrediction,
        occurrence=st.integers(0, 9),
        source_group=st.integers(0, 2),
        destination_group=st.integers(0, 2),
        bytes_per_row=_BYTES,
        time_s=_TIMES_S,
        source=sources,
    )
    return Prediction(
        round_trip_time_s=draw(_TIMES_S),
        usd_per_million_tokens=draw(st.none() | st.floats(0, 1e3)),
        occupancy=draw(fractions),
        internode_bytes_per_token=draw(st.floats(0, 1e9)),
        groups=tuple(draw(st.lists(groups, max_size=2))),
        stages=tuple(draw(st.lists(stages, max_size=2))),
        moves=tuple(draw(st.lists(moves, max_size=2))),
    )


@st.composite
def plans(draw, config: ModelConfig | None = None, annotated: bool = False) -> Plan:
    """A plan that :class:`Plan` accepts; that it fits ``config`` is up to the template drawn.

    ``annotated`` plans may carry a cluster, a profile and a prediction.
    """
    config = draw(configs()) if config is None else config
    count, microbatches = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    optional = {}
    if annotated:
        clusters = st.sampled_from((None, "h100-sxm:16,l40s:8", "a100:2"))
        inventory = draw(clusters)
        optional = {
            "policy": draw(_NAMES),
            "cluster": None if inventory is None else Cluster.parse(inventory),
            "profile": draw(st.none() | st.builds(ProfileRef, name=_NAMES, hash=_NAMES)),
            "prediction": draw(st.none() | predictions()),
            "search_limits": draw(
                st.none() | st.dictionaries(_NAMES, st.lists(st.integers()) | st.none())
            ),
        }
    return Plan(
        model=model_ref(config),
        workload=Workload(
            context=draw(st.integers(1, 2**20)), tpot_slo_s=draw(st.none() | _TIMES_S)
        ),
        template=draw(templates(count, max_layers=min(3, config.num_layers))),
        groups=draw(device_groups(count, microbatches)),
        microbatches=microbatches,
        **optional,
    )
