"""Device types and links as plain values: what a device can do, and what it costs.

Numbers are nominal (data sheet or published table) unless a spec's ``source`` says measured. They
feed the closed-form theory, the memory check and the analytic roofline; measured operator
latencies live in :mod:`weavejax.profiles`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib.resources
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from weavejax.meshes.reading import (
    as_count,
    check_keys,
    keep_floats,
    read_count,
    read_number,
    require_positive,
)

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link:
    """One direction of a device's connection. Moving n bytes takes latency + n / bandwidth.

    Raises:
      ValueError: a bandwidth that is not positive and finite, or a latency that is negative.

    >>> Link(bandwidth_bytes_per_s=32e9, latency_s=20e-6).latency_s
    2e-05
    """

    bandwidth_bytes_per_s: float
    """bytes per second, per device and per direction"""
    latency_s: float
    """seconds before the first byte arrives"""

    def __post_init__(self) -> None:
        keep_floats(self, "bandwidth_bytes_per_s", "latency_s")
        require_positive("a link", "bandwidth_bytes_per_s", self.bandwidth_bytes_per_s)
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0):
            raise ValueError(
                f"a link: latency_s must be finite and at least 0 seconds, got {self.latency_s!r}"
            )

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], *, where: str = "a link") -> Link:
        """Reads ``{"bandwidth_bytes_per_s": ..., "latency_s": ...}``; both are needed."""
        known = tuple(field.name for field in dataclasses.fields(cls))
        check_keys(where, fields, known=known)
        return cls(**{key: read_number(f"{where}: {key}", fields[key]) for key in known})


PAPER_INTER_NODE = Link(bandwidth_bytes_per_s=32e9, latency_s=20e-6)
"""The network default of OpWeave section 7: 32 GB/s and 20 µs per device."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """One accelerator type (paper section 3: c, β, M and F of a GPU type).

    Raises:
      ValueError: a quantity that is not positive and finite, or a name that an inventory string
        could not hold.

    >>> device_spec("h100").memory_bytes
    80000000000.0
    """

    name: str
    """lower case; letters, digits, '.', '_' and '-'"""
    memory_bytes: float
    """M, bytes; 1 GB is 1e9 bytes"""
    bandwidth_bytes_per_s: float
    """β, bytes per second of device memory"""
    bf16_flop_per_s: float
    """F, dense bfloat16 FLOP per second"""
    usd_per_hour: float | None
    """c, US dollars per device hour; None where no price is known"""
    devices_per_node: int
    """devices that share the intra-node link"""
    intra_node: Link
    """to a device of the same node"""
    inter_node: Link = PAPER_INTER_NODE
    """to a device of another node"""
    source: str
    """where the numbers come from"""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                "a device name is lower case and holds letters, digits, '.', '_' and '-' only, "
                f"got {self.name!r}"
            )
        where = f"device {self.name!r}"
        quantities = ("memory_bytes", "bandwidth_bytes_per_s", "bf16_flop_per_s")
        keep_floats(self, *quantities)
        for field in quantities:
            require_positive(where, field, getattr(self, field))
        if self.usd_per_hour is not None:
            keep_floats(self, "usd_per_hour")
            require_positive(where, "usd_per_hour", self.usd_per_hour)
        count = as_count(f"{where}: devices_per_node", self.devices_per_node)
        object.__setattr__(self, "devices_per_node", count)

    def require_usd_per_hour(self) -> float:
        """The price, for code that needs a cost.

        Raises:
          MissingPriceError: no price is known for this device.

        >>> device_spec("l40s").require_usd_per_hour()
        1.09
        """
        if self.usd_per_hour is None:
            raise MissingPriceError(
                f"a cost needs a price for {self.name!r}, and none is known. Give one with "
                f"cluster.with_prices({{{self.name!r}: <usd per device hour>}}) or under "
                "'usd_per_hour' in the cluster file"
            )
        return self.usd_per_hour

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, in field order; :meth:`from_dict` gives an equal spec back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> DeviceSpec:
        """Reads one device of a JSON or YAML file.

        ``usd_per_hour`` and ``inter_node`` may be absent: no price, and the paper's network.

        Raises:
          ValueError: a field that is missing, unknown or not a number.

        >>> spec = device_spec("a100")
        >>> DeviceSpec.from_dict(spec.to_dict()) == spec
        True
        """
        name = fields.get("name") if isinstance(fields, Mapping) else None
        where = f"device {name!r}" if name else "a device"
        names = [field.name for field in dataclasses.fields(cls)]
        check_keys(where, fields, known=names, optional=("usd_per_hour", "inter_node"))
        values: dict[str, Any] = {"name": str(fields["name"]), "source": str(fields["source"])}
        for field in ("memory_bytes", "bandwidth_bytes_per_s", "bf16_flop_per_s"):
            values[field] = read_number(f"{where}: {field}", fields[field])
        price = fields.get("usd_per_hour")
        values["usd_per_hour"] = (
            None if price is None else read_number(f"{where}: usd_per_hour", price)
        )
        values["devices_per_node"] = read_count(
            f"{where}: devices_per_node", fields["devices_per_node"]
        )
        for field in ("intra_node", "inter_node"):
            if field in fields:
                values[field] = Link.from_dict(fields[field], where=f"{where}: {field}")
        return cls(**values)


class MissingPriceError(ValueError):
    """A cost was asked of a device whose price is not known."""


class UnknownDeviceError(ValueError):
    """A device name that neither the package nor the given file describes."""


def known_devices() -> tuple[str, ...]:
    """Names of the device types that ship with the package, in the order of the data file.

    >>> "h100-sxm" in known_devices()
    True
    """
    return tuple(_shipped()[0])


def device_spec(name: str, custom: Mapping[str, DeviceSpec] | None = None) -> DeviceSpec:
    """Looks a device type up by name or alias, custom ones first.

    Raises:
      UnknownDeviceError: lists the known names and the closest ones.

    >>> device_spec("H100").name
    'h100-sxm'
    """
    shipped, aliases = _shipped()
    devices = {**shipped, **(custom or {})}
    key = name.strip().lower()
    if key in devices:
        return devices[key]
    if key in aliases:
        return devices[aliases[key]]
    close = difflib.get_close_matches(key, [*devices, *aliases], n=3)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    raise UnknownDeviceError(
        f"unknown device {name!r}.{hint} Known: {', '.join(devices)}. "
        "Describe another one under 'devices' in a cluster file"
    )


@functools.cache
def _shipped() -> tuple[dict[str, DeviceSpec], dict[str, str]]:
    text = importlib.resources.files("weavejax.meshes").joinpath("devices.json").read_text("utf-8")
    table = json.loads(text)
    devices = {
        name: DeviceSpec.from_dict({"name": name, **fields})
        for name, fields in table["devices"].items()
    }
    return devices, table["aliases"]
