"""Writing converted checkpoints (:mod:`weavejax.models.orbax_source` reads them)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from weavejax.models.loading import Model
from weavejax.models.orbax_source import FORMAT, operator_directory, stored_params
from weavejax.models.sequence import operator_sequence
from weavejax.models.weights import CONVERTED_FILE, as_dtype


def convert_model(
    model: Model,
    directory: str | Path,
    *,
    dtype: Any = None,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Path:
    """Write a model so that every device group later reads its own operators only.

    One operator is in memory at a time.

    Args:
        model: any model that :func:`weavejax.load_model` gives.
        directory: does not exist yet or is empty.
        dtype: of the stored weights; the model's, else float32, by default.
        progress: called with (what, done, total).

    Returns:
        The directory, which :func:`weavejax.load_model` takes.

    Raises:
        ValueError: the directory holds something.

    Examples:
        >>> import tempfile
        >>> from weavejax.models.loading import load_model
        >>> model = load_model("qwen3-0.6b", random_weights=True, scale="tiny")
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     load_model(convert_model(model, directory)).config == model.config
        True
    """
    directory = Path(directory).absolute()
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ValueError(f"{directory} must not exist or be an empty directory")
    dtype = as_dtype(dtype or model.dtype or "float32")
    sequence = operator_sequence(model.config)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        for done, op in enumerate(sequence, start=1):
            stored = {param.name for param in stored_params(op)}
            if stored:
                arrays = {
                    name: array
                    for name, array in model.iter_params(op, dtype=dtype)
                    if name in stored
                }
                checkpointer.save(
                    operator_directory(directory, op.name), args=ocp.args.PyTreeSave(arrays)
                )
            progress("converting operators", done, len(sequence))
    if model.tokenizer is not None:
        model.tokenizer.save(directory)
    info = {
        "format": FORMAT,
        "dtype": dtype.name,
        "eos_token_ids": list(model.eos_token_ids),
        "config": model.config.to_dict(),
    }
    # Last: a directory without this file is no model, so a conversion that broke off is not used.
    (directory / CONVERTED_FILE).write_text(json.dumps(info, indent=2) + "\n")
    return directory
