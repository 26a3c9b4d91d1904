"""Named models: the published architectures as data, for planning without any weights."""

from __future__ import annotations

import difflib
import json
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from weavejax.models.config import ModelConfig
from weavejax.models.hf_config import config_from_hf, load_config


@lru_cache(maxsize=1)
def _presets() -> dict[str, dict[str, Any]]:
    text = resources.files("weavejax.models").joinpath("presets.json").read_text()
    return json.loads(text)


def preset_names() -> tuple[str, ...]:
    """Names :func:`preset_config` knows."""
    return tuple(_presets())


def preset_hub_id(name: str) -> str:
    """The hub repository a preset's weights are published under."""
    return _presets()[name]["hub_id"]


def preset_hf_config(name: str) -> dict[str, Any]:
    """The fields of a preset's published ``config.json`` that say what it computes."""
    return dict(_presets()[name]["config"])


def preset_config(name: str) -> ModelConfig:
    """The architecture of a preset.

    Raises:
        ValueError: no such preset; the message lists them.

    Examples:
        >>> preset_config("gemma-3-27b").num_layers
        62
    """
    if name not in _presets():
        close = difflib.get_close_matches(name, preset_names(), n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(
            f"no preset is called {name!r}{hint}; presets are {', '.join(preset_names())}"
        )
    return config_from_hf(_presets()[name]["config"], name=name)


def resolve_config(model: str | Path | ModelConfig) -> ModelConfig:
    """A config from itself, a preset's name, or a directory or file with a ``config.json``.

    Raises:
        ValueError: neither a preset nor an existing path.
    """
    if isinstance(model, ModelConfig):
        return model
    if isinstance(model, Path) or str(model) not in _presets():
        path = Path(model)
        if path.is_dir() or path.suffix == ".json":
            return load_config(path)
    return preset_config(str(model))
