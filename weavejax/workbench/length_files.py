"""Length distributions from local files: plain numbers, the Azure LLM trace, ShareGPT."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from weavejax.workbench.lengths import Lengths

AZURE_COLUMNS = ("ContextTokens", "GeneratedTokens")
BYTES_PER_TOKEN = 4
"""A rule of thumb for English text; give ``count_tokens`` to count."""

PIECES = 8
"""Parts a generation is cut into: its context grows while it decodes."""

CountTokens = Callable[[str], int]


class LengthFileError(ValueError):
    """A file that holds no lengths; the message says what was found where."""


def load_lengths(path: str | Path, *, count_tokens: CountTokens | None = None) -> Lengths:
    """Read a file by its form.

    ``.json`` is ShareGPT, a CSV with Azure's header is the Azure trace, anything else is one
    number a line.

    Args:
        path: a local file.
        count_tokens: tokens of a text, for ShareGPT; four bytes a token by default.

    Raises:
        LengthFileError: the file is missing or holds something else.
    """
    path = Path(path)
    text = _read(path)
    if path.suffix.lower() == ".json":
        return sharegpt_lengths(path, count_tokens=count_tokens)
    if AZURE_COLUMNS[0] in text.partition("\n")[0]:
        return azure_lengths(path)
    values = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            values.append(_number(line.strip(), path, number))
    if not values:
        raise LengthFileError(f"{path}: one length in tokens a line is needed, got no line")
    return Lengths(values)


def azure_lengths(path: str | Path) -> Lengths:
    """The Azure LLM inference trace: columns ``ContextTokens`` and ``GeneratedTokens``.

    Raises:
        LengthFileError: the columns are missing, or a cell is no whole number.
    """
    path = Path(path)
    rows = csv.DictReader(_read(path).splitlines())
    missing = [name for name in AZURE_COLUMNS if name not in (rows.fieldnames or ())]
    if missing:
        raise LengthFileError(
            f"{path}: the Azure form needs the columns {', '.join(AZURE_COLUMNS)}; missing "
            f"{', '.join(missing)}"
        )
    requests = [
        tuple(_number(row[name], path, number) for name in AZURE_COLUMNS)
        for number, row in enumerate(rows, 2)
    ]
    return generation_lengths(requests, path)  # type: ignore[arg-type]


def sharegpt_lengths(path: str | Path, *, count_tokens: CountTokens | None = None) -> Lengths:
    """ShareGPT conversations: every answer decodes behind all that was said before it.

    A list of ``{"conversations": [{"from": "human"|"gpt", "value": text}, ...]}``; ``user`` and
    ``assistant`` are read too.

    Raises:
        LengthFileError: another form, or no answer in it.
    """
    path = Path(path)
    count = count_tokens or (lambda text: math.ceil(len(text.encode()) / BYTES_PER_TOKEN))
    try:
        data = json.loads(_read(path))
    except json.JSONDecodeError as error:
        raise LengthFileError(f"{path}: not JSON: {error}") from None
    if not isinstance(data, list):
        raise LengthFileError(f"{path}: ShareGPT is a list, got {type(data).__name__}")
    requests = []
    for index, entry in enumerate(data):
        said = 0
        for turn in _turns(entry, path, index):
            tokens = count(str(turn.get("value", "")))
            if turn.get("from") in ("gpt", "assistant") and tokens:
                requests.append((said, tokens))
            said += tokens
    return generation_lengths(requests, path)


def generation_lengths(requests: Iterable[tuple[float, float]], source: object) -> Lengths:
    """Contexts while requests decode: from the prompt on, each weighted by its steps.

    Args:
        requests: (prompt tokens, generated tokens).
        source: named in the error.

    Raises:
        LengthFileError: nothing is generated.

    Examples:
        >>> generation_lengths([(100, 8)], "here").mean
        104.5
    """
    tokens, weights = [], []
    for prompt, generated in requests:
        pieces = int(min(PIECES, generated))
        for piece in range(pieces):
            share = generated / pieces
            tokens.append(prompt + share * piece + (share + 1) / 2)
            weights.append(share)
    if not tokens:
        raise LengthFileError(f"{source}: no request that generates a token")
    return Lengths(tokens, weights)


def _turns(entry: Any, path: Path, index: int) -> list[dict[str, Any]]:
    turns = entry.get("conversations") if isinstance(entry, dict) else None
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise LengthFileError(
            f"{path}: entry {index} needs 'conversations', a list of turns, got "
            f"{type(turns).__name__}"
        )
    return turns


def _number(text: str | None, path: Path, line: int) -> float:
    try:
        return float(text or "")
    except ValueError:
        raise LengthFileError(f"{path}, line {line}: a number is needed, got {text!r}") from None


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise LengthFileError(f"{path}: there is no such file") from None
    except UnicodeDecodeError as error:
        raise LengthFileError(f"{path}: not UTF-8 text: {error}") from None
