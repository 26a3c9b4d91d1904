"""Reading and checking plain values of JSON, YAML and inventory strings.

Every check says where the value stands, what it must be and what was got.
"""

from __future__ import annotations

import json
import math
import numbers
import operator
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any


def read_table(path: str | pathlib.Path) -> dict[str, Any]:
    """Reads a JSON or YAML file whose top level is a mapping.

    Raises:
      ValueError: another suffix, a syntax error, or a top level that is not a mapping.
      OSError: the file cannot be read.
    """
    path = pathlib.Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".json", ".yaml", ".yml"):
        raise ValueError(f"{path}: expected a .json, .yaml or .yml file, got suffix {suffix!r}")
    try:
        text = path.read_text(encoding="utf-8")
        table = json.loads(text) if suffix == ".json" else _parse_yaml(text)
    except ValueError as error:
        raise ValueError(f"{path}: not valid {suffix[1:].upper()}: {error}") from error
    if not isinstance(table, dict):
        raise ValueError(f"{path}: the top level must be a mapping, got {type(table).__name__}")
    return table


def read_number(where: str, value: object) -> float:
    """A float from JSON or YAML. YAML 1.1 reads ``32e9`` as text, so text is accepted too."""
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError:
            pass
    raise ValueError(f"{where} must be a number, got {value!r}")


def read_count(where: str, value: object) -> int:
    """A whole number of at least 1, from JSON, YAML or an inventory string."""
    number = read_number(where, value)
    if not (math.isfinite(number) and number == int(number) and number >= 1):
        raise ValueError(f"{where} must be a whole number of at least 1, got {value!r}")
    return int(number)


def as_count(where: str, value: Any) -> int:
    """A whole number of at least 1 as an ``int``, whatever kind of whole number it is."""
    number = None if isinstance(value, bool) or not hasattr(value, "__index__") else value
    if number is None or operator.index(number) < 1:
        raise ValueError(f"{where} must be a whole number of at least 1, got {value!r}")
    return operator.index(number)


def check_keys(
    where: str, fields: Mapping[str, Any], *, known: Iterable[str], optional: Iterable[str] = ()
) -> None:
    """Rejects unknown keys and missing ones, both by name."""
    if not isinstance(fields, Mapping):
        raise ValueError(f"{where} must be a mapping, got {fields!r}")
    known, optional = tuple(known), tuple(optional)
    unknown = [key for key in fields if key not in known]
    if unknown:
        raise ValueError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join(known)}")
    missing = [key for key in known if key not in fields and key not in optional]
    if missing:
        raise ValueError(f"{where}: missing {', '.join(missing)}")


def require_positive(where: str, field: str, value: float) -> None:
    """Raises ValueError unless the value is positive and finite."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{where}: {field} must be positive and finite, got {value!r}")


def keep_floats(part: Any, *names: str) -> None:
    """Makes these fields of a frozen dataclass ``float``, so that JSON can hold them.

    Raises:
      ValueError: a field that is no real number.
    """
    for name in names:
        value = getattr(part, name)
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise ValueError(f"{name} must be a number, got {value!r}")
        object.__setattr__(part, name, float(value))


def _parse_yaml(text: str) -> object:
    import yaml  # only cluster files need it

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
