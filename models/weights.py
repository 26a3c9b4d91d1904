"""Where weights come from: a source of named tensors in Hugging Face's names and layouts.

A source never holds a model. :meth:`WeightSource.read` brings one tensor at a time, so that
loading peaks near one tensor. Packing into the operators' layouts is
:mod:`weavejax.models.packing`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import ml_dtypes
import numpy as np

from weavejax.models.specs import OperatorSpec

CONVERTED_FILE = "weavejax.json"
"""What marks a directory as a converted checkpoint."""
_DTYPES: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}


class CheckpointError(ValueError):
    """A checkpoint that is damaged, incomplete or of another architecture."""


class WeightSource(Protocol):
    """Named tensors of one checkpoint.

    Names are those of the text model as Hugging Face publishes it (``model.layers.0.mlp...``,
    ``lm_head.weight``), matrices are ``[out, in]``.
    """

    @property
    def location(self) -> str:
        """The file or directory, for messages."""
        ...

    def names(self) -> frozenset[str]:
        """All tensors of the text model."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one tensor, without reading it."""
        ...

    def read(self, name: str, dtype: Any, index: int | None = None) -> np.ndarray:
        """A new array with one tensor, or with entry ``index`` of its first axis.

        Raises:
            CheckpointError: no such tensor, or the file ends before its data does.
        """
        ...


@runtime_checkable
class PackedSource(Protocol):
    """Parameters of one checkpoint that are in the operators' layouts already."""

    @property
    def location(self) -> str:
        """The directory, for messages."""
        ...

    def read_packed(self, op: OperatorSpec, dtype: Any) -> Iterator[tuple[str, np.ndarray]]:
        """The parameters ``op`` declares, one at a time."""
        ...


class ArraySource:
    """Tensors that are already in memory.

    Examples:
        >>> source = ArraySource({"model.norm.weight": np.ones(4, np.float32)})
        >>> source.shape("model.norm.weight")
        (4,)
    """

    location = "memory"

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._arrays = dict(arrays)

    def names(self) -> frozenset[str]:
        return frozenset(self._arrays)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._arrays[require(self, name)].shape

    def read(self, name: str, dtype: Any, index: int | None = None) -> np.ndarray:
        array = self._arrays[require(self, name)]
        return np.array(array if index is None else array[index], dtype=dtype)


def require(source: WeightSource, name: str) -> str:
    """``name`` itself, or an error that names the tensor and the file."""
    if name not in source.names():
        layer = name.rpartition(".layers.")[2].partition(".")[0]
        prefix = f"model.layers.{layer}."
        siblings = sorted(n.removeprefix(prefix) for n in source.names() if n.startswith(prefix))
        there = f"; layer {layer} has {', '.join(siblings[:12])}" if siblings else ""
        raise CheckpointError(f"{source.location} has no tensor {name!r}{there}")
    return name


def text_name(name: str) -> str | None:
    """Canonical name of a tensor of the text model, ``None`` for one outside it.

    Multimodal checkpoints prefix their text part in one of two ways, and base models leave the
    outer ``model.`` out.

    Examples:
        >>> text_name("language_model.model.layers.0.mlp.up_proj.weight")
        'model.layers.0.mlp.up_proj.weight'
        >>> text_name("model.language_model.norm.weight"), text_name("vision_tower.x.weight")
        ('model.norm.weight', None)
    """
    for prefix, canonical in _PREFIXES:
        if name.startswith(prefix):
            name = canonical + name.removeprefix(prefix)
            break
    if name.endswith(".rotary_emb.inv_freq"):  # old exports; computed from the config
        return None
    return name if name.startswith(_TEXT) else None


_PREFIXES = (
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("model.language_model.", "model."),
    ("layers.", "model.layers."),
    ("embed_tokens.", "model.embed_tokens."),
    ("norm.", "model.norm."),
)
_TEXT = ("model.layers.", "model.embed_tokens.", "model.norm.", "lm_head.")


def as_dtype(dtype: Any) -> np.dtype[Any]:
    """A numpy dtype from a name or a dtype.

    Raises:
        ValueError: not a floating-point type that operators run in.

    Examples:
        >>> as_dtype("bfloat16")
        dtype(bfloat16)
    """
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    if name not in _DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}")
    return np.dtype(_DTYPES[name])
