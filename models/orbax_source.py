"""Converted checkpoints: every operator's packed parameters in an Orbax checkpoint of its own.

A directory holds ``weavejax.json`` (the model's config, end tokens, dtype), ``operators/`` with
one Orbax checkpoint per operator, and the tokenizer's files. Parameters are kept in the layout of
``operator_sequence(config)``, which suits every plan: whoever serves an operator reads that
operator alone, one parameter at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp

from weavejax.models.config import ModelConfig
from weavejax.models.repacking import repack
from weavejax.models.sequence import operator_sequence
from weavejax.models.specs import OperatorSpec, ParamSpec
from weavejax.models.weights import CONVERTED_FILE, CheckpointError, as_dtype

FORMAT = "weavejax.checkpoint/2"


class OrbaxSource:
    """The packed parameters of a converted checkpoint.

    Raises:
        CheckpointError: a format of another version, or an operator is missing.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory).absolute()
        self.info = read_info(self.directory)
        self.config = ModelConfig.from_dict(self.info["config"])
        self._sequence = {op.name: op for op in operator_sequence(self.config)}
        for op in self._sequence.values():
            if stored_params(op) and not operator_directory(self.directory, op.name).is_dir():
                raise CheckpointError(
                    f"{self.directory} lacks the weights of operator {op.name!r}; "
                    "convert the model again"
                )

    @property
    def location(self) -> str:
        return str(self.directory)

    def read_packed(self, op: OperatorSpec, dtype: Any) -> Iterator[tuple[str, np.ndarray]]:
        """The parameters ``op`` declares, one at a time.

        Args:
            op: an operator of ``operator_sequence(config, heads_ways)``.
            dtype: of the result.

        Raises:
            CheckpointError: a stored parameter has another shape, or cannot be read.
        """
        for param in op.params:
            owner, _, name = (param.shared or f"{op.name}.{param.name}").rpartition(".")
            stored = next(p for p in self._sequence[owner].params if p.name == name)
            array = self._read(owner, stored, as_dtype(dtype))
            yield param.name, repack(array, param, self.config)

    def _read(self, owner: str, param: ParamSpec, dtype: np.dtype[Any]) -> np.ndarray:
        arguments = ocp.args.PyTreeRestore(
            item={param.name: 0},
            restore_args={param.name: ocp.RestoreArgs(restore_type=np.ndarray, dtype=dtype)},
            partial_restore=True,
        )
        try:
            with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
                directory = operator_directory(self.directory, owner)
                array = checkpointer.restore(directory, args=arguments)[param.name]
        except (ValueError, KeyError, OSError) as error:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise CheckpointError(
                f"{self.directory}: parameter {param.name!r} of operator {owner!r} cannot be "
                f"read: {reason}"
            ) from error
        if array.shape != param.shape:
            raise CheckpointError(
                f"{self.directory}: parameter {param.name!r} of operator {owner!r} must have "
                f"shape {list(param.shape)} by the config, got {list(array.shape)}"
            )
        return array


def read_info(directory: Path) -> dict[str, Any]:
    """What ``weavejax.json`` says."""
    info = json.loads((directory / CONVERTED_FILE).read_text())
    if info.get("format") != FORMAT:
        raise CheckpointError(
            f'{directory / CONVERTED_FILE} must have "format": {FORMAT!r}, got '
            f"{info.get('format')!r}; convert the model again"
        )
    return info


def operator_directory(directory: Path, name: str) -> Path:
    """Where the parameters of one operator are."""
    return directory / "operators" / name


def stored_params(op: OperatorSpec) -> tuple[ParamSpec, ...]:
    """The parameters of an operator that are not another operator's."""
    return tuple(param for param in op.params if param.shared is None)
