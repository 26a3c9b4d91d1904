"""Tiny checkpoints of every family, read by both sides: transformers and the packing."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import hf_tiny
import numpy as np
import torch

from weavejax.models import ModelConfig, OperatorSpec, load_config, operator_sequence
from weavejax.models.packing import operator_params
from weavejax.models.safetensors_source import SafetensorsSource


@dataclasses.dataclass(frozen=True)
class Case:
    model: Any
    config: ModelConfig
    source: SafetensorsSource
    directory: tempfile.TemporaryDirectory[str]
    """Removed when the process ends."""


@lru_cache
def case_of(family: str) -> Case:
    directory = tempfile.TemporaryDirectory()
    path = Path(directory.name)
    model = hf_tiny.write_hf_checkpoint(family, path)
    return Case(model, load_config(path, name=family), SafetensorsSource(path), directory)


def inputs(size: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((5, size), np.float32)


def torch_out(module: Any, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return module(torch.from_numpy(x)).numpy()


def operators(
    case: Case, kind: str, ways: int = 1
) -> Iterator[tuple[OperatorSpec, dict[str, np.ndarray], Any]]:
    """Each operator of ``kind`` with its packed parameters and the matching HF layer."""
    for op in operator_sequence(case.config, ways):
        if op.kind == kind:
            params = operator_params(op, case.config, case.source, heads_ways=ways)
            yield op, params, case.model.model.layers[op.layer]
