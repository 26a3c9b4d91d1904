"""Reading the parts of a plan file: typed fields, and errors that name them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


class PlanError(ValueError):
    """A plan that cannot be: the message says the rule, the numbers and what was got."""


def whole_number(name: str, value: Any) -> None:
    """Raise :class:`PlanError` unless ``value`` is a whole number of at least one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PlanError(f"{name} must be a whole number >= 1, got {value!r}")


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
