"""Safetensors checkpoints, one file or sharded with an index, read one tensor at a time.

The format (https://huggingface.co/docs/safetensors): a little-endian u64 header length, a JSON
header with dtype, shape and byte range of every tensor, then the data. The header is read here
rather than by the library so that a damaged file can name the tensor it breaks at.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from weavejax.models.weights import CheckpointError, require, text_name

_INDEX = "model.safetensors.index.json"
_DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "U8": np.uint8,
}


@dataclass(frozen=True, kw_only=True)
class _Entry:
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Of the data in the file, in bytes."""


class SafetensorsSource:
    """Tensors of a directory with ``*.safetensors`` files.

    Args:
        directory: holds ``model.safetensors``, or shards and their index.

    Raises:
        FileNotFoundError: no safetensors in the directory, or a shard of the index is missing.
        CheckpointError: a file that is no safetensors file or ends early; names the tensor.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._entries: dict[str, _Entry] = {}
        for path in _files(self.directory):
            for name, entry in _header(path).items():
                canonical = text_name(name)
                if canonical is not None:
                    self._entries[canonical] = entry
        self._names = frozenset(self._entries)

    @property
    def location(self) -> str:
        return str(self.directory)

    def names(self) -> frozenset[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[require(self, name)].shape

    def read(self, name: str, dtype: Any, index: int | None = None) -> np.ndarray:
        entry = self._entries[require(self, name)]
        if entry.dtype not in _DTYPES:
            raise CheckpointError(
                f"{entry.path}: tensor {name!r} is stored as {entry.dtype}; stored types that "
                f"can be read are {', '.join(_DTYPES)}"
            )
        stored = np.dtype(_DTYPES[entry.dtype])
        shape, skipped = entry.shape, 0
        if index is not None:
            shape = shape[1:]
            skipped = index * math.prod(shape) * stored.itemsize
        # Read rather than mapped: mapped pages would count as memory beside the copy.
        with entry.path.open("rb") as file:
            file.seek(entry.offset + skipped)
            data = np.fromfile(file, stored, math.prod(shape))
        return data.reshape(shape).astype(dtype, copy=False)


def _files(directory: Path) -> list[Path]:
    index = directory / _INDEX
    if index.exists():
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        missing = [shard for shard in shards if not (directory / shard).exists()]
        if missing:
            raise FileNotFoundError(
                f"{directory}: {_INDEX} lists {len(shards)} files, of which {len(missing)} are "
                f"not there: {', '.join(missing[:4])}"
            )
        return [directory / shard for shard in shards]
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        there = ", ".join(sorted(path.name for path in directory.iterdir())) or "nothing"
        raise FileNotFoundError(
            f"{directory} has no *.safetensors file, it has {there}; other weight formats "
            "(.bin, .pt) are not read"
        )
    return files


def _header(path: Path) -> dict[str, _Entry]:
    """Entries of one file, checked against its size."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise CheckpointError(
                f"{path} is no whole safetensors file: it has {size} bytes and its header "
                f"should take {8 + length}"
            )
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise CheckpointError(f"{path} has no safetensors header: {error}") from None
    entries: dict[str, _Entry] = {}
    for name, item in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in item["data_offsets"])
        if end > size:
            raise CheckpointError(
                f"{path} is truncated: tensor {name!r} should end at byte {end}, "
                f"the file has {size}"
            )
        shape = tuple(item["shape"])
        entries[name] = _Entry(path=path, dtype=item["dtype"], shape=shape, offset=begin)
    return entries
