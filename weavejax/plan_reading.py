"""Reading the parts of a plan file: typed fields, and errors that name them."""

from __future__ import annotations

import dataclasses
import json
import operator
from collections.abc import Mapping
from typing import Any


class PlanError(ValueError):
    """A plan that cannot be: the message says the rule, the numbers and what was got."""


def whole_number(name: str, value: Any, *, least: int | None = 1) -> int:
    """``value`` as an ``int``, whatever kind of whole number it is.

    Raises:
        PlanError: no whole number, or one below ``least``.

    Examples:
        >>> import numpy as np
        >>> whole_number("replicas", np.int64(3))
        3
    """
    rule = f"{name} must be a whole number{'' if least is None else f' >= {least}'}, got {value!r}"
    if isinstance(value, bool):
        raise PlanError(rule)
    try:
        number = operator.index(value)
    except TypeError:
        raise PlanError(rule) from None
    if least is not None and number < least:
        raise PlanError(rule)
    return number


def keep_whole_numbers(part: Any, *names: str, least: int | None = 1) -> None:
    """Make these fields of a frozen dataclass ``int``; the errors of :func:`whole_number`."""
    for name in names:
        object.__setattr__(part, name, whole_number(name, getattr(part, name), least=least))


def keep_strings(part: Any, *names: str, of: str) -> None:
    """Make these fields of a frozen dataclass ``str``.

    Raises:
        PlanError: a field that is no string.
    """
    for name in names:
        value = getattr(part, name)
        if not isinstance(value, str):
            raise PlanError(f"{name} of {of} must be a string, got {value!r}")
        object.__setattr__(part, name, str(value))


def require_type(name: str, value: Any, kind: type) -> None:
    """Raise :class:`PlanError` unless ``value`` is a ``kind``."""
    if not isinstance(value, kind):
        raise PlanError(f"{name} must be a weavejax.{kind.__name__}, got {value!r}")


def plain_data(name: str, value: Any) -> Any:
    """A copy of ``value`` as JSON would give it back: lists for tuples.

    Raises:
        PlanError: it holds something that JSON cannot.
    """
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:
        raise PlanError(
            f"{name} must be plain data that JSON holds, got {value!r}: {error}"
        ) from None


def read_integer(data: Mapping[str, Any], key: str) -> int:
    """A whole number at ``key``; 1 where it is missing."""
    value = data.get(key, 1)
    if not isinstance(value, int) or isinstance(value, bool):
        raise PlanError(f"{key} must be a whole number, got {value!r}")
    return value


def read_part(cls: Any, data: Mapping[str, Any], key: str) -> Any:
    """An optional part that reads itself with ``cls.from_dict``; its errors are the plan's."""
    value = data.get(key)
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise PlanError(f"{key} must be an object, got {value!r}")
    try:
        return cls.from_dict(value)
    except (KeyError, TypeError, ValueError) as error:
        reason = f"missing {error}" if isinstance(error, KeyError) else error
        raise PlanError(f"{key}: {reason}") from None


def read_fields(cls: Any, data: Mapping[str, Any], key: str) -> Any:
    """Build the frozen dataclass ``cls`` from ``data[key]``; an error names the field."""
    value = data.get(key)
    if not isinstance(value, Mapping):
        raise PlanError(f"{key} must be an object, got {value!r}")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    unknown = sorted(set(value) - set(fields))
    missing = [
        name
        for name, field in fields.items()
        if name not in value
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if unknown or missing:
        raise PlanError(f"{key}: unknown {unknown}, missing {missing}; the fields are {[*fields]}")
    values: dict[str, Any] = {}
    for name, item in value.items():
        kind = str(fields[name].type)
        whole = isinstance(item, int) and not isinstance(item, bool)
        if kind == "int" and not whole:
            raise PlanError(f"{key}.{name} must be a whole number, got {item!r}")
        if kind == "str" and not isinstance(item, str):
            raise PlanError(f"{key}.{name} must be a string, got {item!r}")
        if kind.startswith("Mapping") and not isinstance(item, Mapping):
            raise PlanError(f"{key}.{name} must be an object, got {item!r}")
        if kind.startswith("tuple[int") and not (
            isinstance(item, list) and all(type(part) is int for part in item)
        ):
            raise PlanError(f"{key}.{name} must be a list of whole numbers, got {item!r}")
        if kind.startswith("float") and item is not None and not (whole or isinstance(item, float)):
            raise PlanError(f"{key}.{name} must be a number, got {item!r}")
        values[name] = tuple(item) if isinstance(item, list) else item
    return cls(**values)
