"""The GGUF container: metadata and the place of every tensor.

Layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), little-endian: magic, version,
counts, typed key-value pairs, tensor descriptions, aligned data. It is read here in one pass
because the ``gguf`` package's reader takes seconds for a vocabulary and cannot name the tensor a
truncated file breaks at; its dequantisation is what is used.
"""

from __future__ import annotations

import itertools
import math
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from weavejax.models.weights import CheckpointError

# Value types to struct codes; 8 is a string, 9 an array.
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_MOST_DIMENSIONS = 4
PIECE_ELEMENTS = 2**19
"""Dequantised at once, about: they stay in a processor's cache."""
THREADS = 4
"""That dequantise pieces of one tensor side by side, at most; NumPy lets go of the interpreter."""


@dataclass(frozen=True, kw_only=True)
class GgufTensor:
    """One tensor of a file."""

    shape: tuple[int, ...]
    """Outermost first (the file has it innermost first)."""
    kind: GGMLQuantizationType
    offset: int
    """Of its data in the file, in bytes."""
    nbytes: int


class GgufFile:
    """Metadata and tensors of one ``.gguf`` file.

    Raises:
        FileNotFoundError: no such file.
        CheckpointError: not GGUF, a version or tensor type that cannot be read, or a file that
            ends early; names the tensor.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"{self.path} does not exist")
        # Positions are into this map; nothing but the header is touched before a tensor is read.
        empty = self.path.stat().st_size == 0
        data: Any = b"" if empty else np.memmap(self.path, np.uint8, "r")
        reader = _Reader(memoryview(data), self.path)
        if reader.bytes(4) != b"GGUF":
            raise CheckpointError(f"{self.path} is not a GGUF file: it does not start with 'GGUF'")
        version = reader.scalar("I")
        if version not in _VERSIONS:
            raise CheckpointError(
                f"{self.path}: GGUF versions {_VERSIONS} can be read, got {version}"
            )
        tensor_count, pair_count = reader.scalar("Q"), reader.scalar("Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            key = reader.string()
            self.metadata[key] = reader.value(reader.scalar("I"))
        found = [reader.tensor() for _ in range(tensor_count)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise CheckpointError(
                f"{self.path} is damaged: general.alignment must be a whole number >= 1, "
                f"got {alignment!r}"
            )
        start = -(-reader.position // alignment) * alignment
        self.tensors: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in found:
            if offset % alignment:
                raise CheckpointError(
                    f"{self.path} is damaged: offsets are multiples of {alignment}, "
                    f"tensor {name!r} has {offset}"
                )
            self.tensors[name] = self._place(name, shape, kind, start + offset)
        in_order = sorted(self.tensors.items(), key=lambda item: item[1].offset)
        for (name, tensor), (after, following) in itertools.pairwise(in_order):
            if tensor.offset + tensor.nbytes > following.offset:
                raise CheckpointError(
                    f"{self.path} is damaged: tensor {name!r} ends at byte "
                    f"{tensor.offset + tensor.nbytes}, behind byte {following.offset} where "
                    f"{after!r} begins"
                )

    def _place(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> GgufTensor:
        try:
            quantization = GGMLQuantizationType(kind)
        except ValueError:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} has the unknown type {kind}"
            ) from None
        block, block_bytes = GGML_QUANT_SIZES[quantization]
        nbytes = math.prod(shape) // block * block_bytes
        size = self.path.stat().st_size
        if offset + nbytes > size:
            raise CheckpointError(
                f"{self.path} is truncated: tensor {name!r} should end at byte "
                f"{offset + nbytes}, the file has {size}"
            )
        return GgufTensor(shape=shape, kind=quantization, offset=offset, nbytes=nbytes)

    def read(self, name: str) -> np.ndarray:
        """One tensor in float32, dequantised."""
        tensor = self.tensors[name]
        data = np.memmap(self.path, np.uint8, "r", tensor.offset, (tensor.nbytes,))
        block, block_bytes = GGML_QUANT_SIZES[tensor.kind]
        blocks = data.view(np.ndarray).reshape(-1, block_bytes)
        step = PIECE_ELEMENTS // block
        out = np.empty(tensor.shape, np.float32)
        values = out.reshape(len(blocks), -1)

        def fill(start: int) -> None:
            piece = slice(start, start + step)
            # One row of many blocks: `dequantize` works through rows in Python.
            numbers = dequantize(blocks[piece].reshape(1, -1), tensor.kind)
            values[piece] = numbers.reshape(values[piece].shape)

        starts = range(0, len(blocks), step)
        if len(starts) > 1:
            with ThreadPoolExecutor(THREADS) as pool:
                list(pool.map(fill, starts))
        else:
            fill(0)
        return out


class _Reader:
    """A position in a buffer."""

    def __init__(self, data: memoryview, path: Path) -> None:
        self.data, self.path, self.position = data, path, 0

    def bytes(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self.data):
            raise CheckpointError(
                f"{self.path} is truncated: its header goes on to byte {end} at least, "
                f"the file has {len(self.data)}"
            )
        piece = bytes(self.data[self.position : end])
        self.position = end
        return piece

    def scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self.bytes(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        return self.bytes(self.scalar("Q")).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            inner, count = self.scalar("I"), self.scalar("Q")
            if inner in _SCALARS:
                dtype = np.dtype("<" + _SCALARS[inner])
                return np.frombuffer(self.bytes(count * dtype.itemsize), dtype).tolist()
            return [self.value(inner) for _ in range(count)]
        if kind not in _SCALARS:
            raise CheckpointError(f"{self.path}: metadata of the unknown type {kind}")
        return self.scalar(_SCALARS[kind])

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string()
        count = self.scalar("I")
        if count > _MOST_DIMENSIONS:
            raise CheckpointError(
                f"{self.path} is damaged: tensors have up to {_MOST_DIMENSIONS} dimensions, "
                f"{name!r} has {count}"
            )
        shape = tuple(self.scalar("Q") for _ in range(count))[::-1]
        return name, shape, self.scalar("I"), self.scalar("Q")
