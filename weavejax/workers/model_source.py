"""Where a worker finds the model: a description small enough to send, opened on its own host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from weavejax.models.config import ModelConfig
from weavejax.models.loading import Model, load_model
from weavejax.models.random_source import RandomSource


def describe_model(model: Model) -> dict[str, Any]:
    """How another process opens the same weights; JSON-able.

    Raises:
        ValueError: the weights are neither random nor in a place that has a path.

    Examples:
        >>> model = load_model("llama-3.1-8b", random_weights=True, scale="tiny", seed=3)
        >>> sorted(describe_model(model))
        ['config', 'seed']
        >>> open_model(describe_model(model)).config == model.config
        True
    """
    source = model.source
    if isinstance(source, RandomSource):
        return {"config": model.config.to_dict(), "seed": source.seed}
    place = getattr(source, "location", None)
    if not isinstance(place, str) or not Path(place).exists():
        raise ValueError(
            "workers open the model themselves, from a directory, a .gguf file or a seed of random "
            f"weights; got weights from {type(source).__name__}"
        )
    return {"path": place, "config": model.config.to_dict()}


def open_model(description: dict[str, Any]) -> Model:
    """The model of :func:`describe_model`; reads no weights yet.

    Raises:
        ValueError: what is at the path on this host is another architecture.
        FileNotFoundError: nothing is there.
    """
    config = ModelConfig.from_dict(description["config"])
    if "seed" in description:
        return Model(config=config, source=RandomSource(config, seed=description["seed"]))
    model = load_model(description["path"])
    if model.config.digest != config.digest:
        raise ValueError(
            f"every host must have the same model at {description['path']!r}: expected "
            f"architecture {config.digest}, got {model.config.digest} here"
        )
    return model
