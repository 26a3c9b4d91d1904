"""Models: configs and presets, operator specs, Flax operators and checkpoint loading."""

from weavejax.models.config import (
    LayerKind,
    LinearAttentionConfig,
    ModelConfig,
    MoeConfig,
    RopeConfig,
)
from weavejax.models.hf_config import config_from_hf, load_config, supported_model_types
from weavejax.models.presets import preset_config, preset_hub_id, preset_names, resolve_config
from weavejax.models.sequence import operator_sequence
from weavejax.models.specs import OperatorSpec, ParamSpec, StateSpec, TensorSpec

__all__ = [
    "LayerKind",
    "LinearAttentionConfig",
    "ModelConfig",
    "MoeConfig",
    "OperatorSpec",
    "ParamSpec",
    "RopeConfig",
    "StateSpec",
    "TensorSpec",
    "config_from_hf",
    "load_config",
    "operator_sequence",
    "preset_config",
    "preset_hub_id",
    "preset_names",
    "resolve_config",
    "supported_model_types",
]
