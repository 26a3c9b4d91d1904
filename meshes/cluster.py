"""A cluster: how many devices of which type there are, and the link between any two of them."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from weavejax.meshes.devices import (
    DeviceSpec,
    Link,
    UnknownDeviceError,
    device_spec,
)
from weavejax.meshes.reading import as_count, check_keys, read_count, read_number, read_table

CLUSTER_FORMAT = "weavejax.cluster/1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cluster:
    """An inventory of device types.

    Raises:
      ValueError: no device, a count below 1, or a type listed twice.

    >>> cluster = Cluster.parse("h100-sxm:16,l40s:8")
    >>> cluster.names, cluster.count("l40s"), cluster.device_count
    (('h100-sxm', 'l40s'), 8, 24)
    """

    devices: tuple[tuple[DeviceSpec, int], ...]
    """device types with how many there are, in the order given"""

    def __post_init__(self) -> None:
        if not self.devices:
            raise ValueError("a cluster needs at least one device, got an empty inventory")
        object.__setattr__(
            self,
            "devices",
            tuple(
                (spec, as_count(f"the count of {spec.name!r}", count))
                for spec, count in self.devices
            ),
        )
        names = self.names
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{name!r} is listed {names.count(name)} times; add the counts up")

    @property
    def names(self) -> tuple[str, ...]:
        """Device names in inventory order."""
        return tuple(spec.name for spec, _ in self.devices)

    @property
    def device_count(self) -> int:
        """Devices of all types together."""
        return sum(count for _, count in self.devices)

    @classmethod
    def parse(cls, text: str, custom: Mapping[str, DeviceSpec] | None = None) -> Cluster:
        """Reads an inventory string: ``name:count`` pairs separated by commas.

        Raises:
          ValueError: a pair without a count, or a count that is not a whole number above 0.
          UnknownDeviceError: lists known devices and close matches.

        >>> Cluster.parse("h100:2").names
        ('h100-sxm',)
        """
        devices = []
        for pair in text.split(","):
            name, colon, count = (part.strip() for part in pair.partition(":"))
            if not (name and colon and count):
                raise ValueError(
                    "an inventory is 'name:count' pairs separated by commas, such as "
                    f"'h100-sxm:16,l40s:16'; got {pair.strip()!r} in {text!r}"
                )
            spec = device_spec(name, custom)
            devices.append((spec, read_count(f"the count of {spec.name!r}", count)))
        return cls(devices=tuple(devices))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Cluster:
        """Reads a cluster file, YAML or JSON.

        Keys: ``inventory`` (a string as for :meth:`parse`, or a mapping of name to count) and, all
        optional, ``devices`` (name → fields of :class:`DeviceSpec`), ``usd_per_hour`` (name →
        price) and ``network`` (``bandwidth_bytes_per_s`` and/or ``latency_s``, for every type). A
        file written from :meth:`to_dict` is read too.

        Raises:
          ValueError: names the file and the key at fault.
        """
        path = pathlib.Path(path)
        table = read_table(path)
        try:
            return cls.from_dict(table) if "format" in table else _from_table(table, path.name)
        except ValueError as error:
            raise type(error)(f"{path}: {error}") from error

    def device(self, name: str) -> DeviceSpec:
        """The spec of a type of this cluster, by name or alias.

        Raises:
          UnknownDeviceError: the cluster has no such type.
        """
        return self._entry(name)[0]

    def count(self, name: str) -> int:
        """How many devices of a type there are; same errors as :meth:`device`."""
        return self._entry(name)[1]

    def with_prices(self, usd_per_hour: Mapping[str, float]) -> Cluster:
        """The same cluster with other prices, in US dollars per device hour.

        >>> Cluster.parse("h200:8").with_prices({"h200": 4.0}).device("h200").usd_per_hour
        4.0
        """
        prices = {self.device(name).name: price for name, price in usd_per_hour.items()}
        return self._replaced(
            lambda spec: dataclasses.replace(
                spec, usd_per_hour=prices.get(spec.name, spec.usd_per_hour)
            )
        )

    def with_network(
        self, *, bandwidth_bytes_per_s: float | None = None, latency_s: float | None = None
    ) -> Cluster:
        """The same cluster with another inter-node link for every type; None keeps a value."""
        changes = {"bandwidth_bytes_per_s": bandwidth_bytes_per_s, "latency_s": latency_s}
        given = {key: value for key, value in changes.items() if value is not None}
        return self._replaced(
            lambda spec: dataclasses.replace(
                spec, inter_node=dataclasses.replace(spec.inter_node, **given)
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values that stand alone: every spec is written out in full.

        >>> cluster = Cluster.parse("h100-sxm:16,l40s:16")
        >>> Cluster.from_dict(cluster.to_dict()) == cluster
        True
        """
        devices = [{"count": count, **spec.to_dict()} for spec, count in self.devices]
        return {"format": CLUSTER_FORMAT, "devices": devices}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Cluster:
        """The inverse of :meth:`to_dict`.

        Raises:
          ValueError: another format, or a device that is not valid.
        """
        if table.get("format") != CLUSTER_FORMAT:
            raise ValueError(
                f"a cluster needs 'format': {CLUSTER_FORMAT!r}, got {table.get('format')!r}"
            )
        check_keys("cluster", table, known=("format", "devices"))
        if not isinstance(table["devices"], list | tuple):
            raise ValueError(f"'devices' must be a list of devices, got {table['devices']!r}")
        devices = []
        for entry in table["devices"]:
            if not isinstance(entry, Mapping):
                raise ValueError(f"a device must be a mapping of fields, got {entry!r}")
            fields = dict(entry)
            count = read_count(f"the count of {fields.get('name')!r}", fields.pop("count", None))
            devices.append((DeviceSpec.from_dict(fields), count))
        return cls(devices=tuple(devices))

    def _entry(self, name: str) -> tuple[DeviceSpec, int]:
        # A type of this cluster may shadow a shipped one, so its own specs are looked up first.
        own = {spec.name: spec for spec, _ in self.devices}
        wanted = device_spec(name, own).name
        for spec, count in self.devices:
            if spec.name == wanted:
                return spec, count
        raise UnknownDeviceError(f"the cluster has no {wanted!r}; it has {', '.join(self.names)}")

    def _replaced(self, change: Callable[[DeviceSpec], DeviceSpec]) -> Cluster:
        return Cluster(devices=tuple((change(spec), count) for spec, count in self.devices))


def as_cluster(cluster: Cluster | str | os.PathLike[str]) -> Cluster:
    """A cluster from itself, an inventory string, or the path of a .yaml, .yml or .json file.

    >>> as_cluster("l40s:4").device_count
    4
    """
    if isinstance(cluster, Cluster):
        return cluster
    text = os.fspath(cluster)
    if text.lower().endswith((".yaml", ".yml", ".json")):
        return Cluster.load(text)
    return Cluster.parse(text)


def link_between(source: DeviceSpec, destination: DeviceSpec, *, same_node: bool) -> Link:
    """The link between two devices: the slower endpoint decides (design: transfer time).

    >>> from weavejax.meshes.devices import device_spec
    >>> h100, l40s = device_spec("h100"), device_spec("l40s")
    >>> link_between(h100, l40s, same_node=True).bandwidth_bytes_per_s
    32000000000.0
    """
    ends = [spec.intra_node if same_node else spec.inter_node for spec in (source, destination)]
    return Link(
        bandwidth_bytes_per_s=min(end.bandwidth_bytes_per_s for end in ends),
        latency_s=max(end.latency_s for end in ends),
    )


def _from_table(table: Mapping[str, Any], file_name: str) -> Cluster:
    optional = ("devices", "usd_per_hour", "network")
    check_keys("cluster", table, known=("inventory", *optional), optional=optional)
    custom = {}
    for name, fields in _mapping(table, "devices").items():
        if not isinstance(fields, Mapping):
            raise ValueError(f"device {name!r} must be a mapping of fields, got {fields!r}")
        described = {"source": f"cluster file {file_name}", **fields, "name": str(name)}
        custom[str(name)] = DeviceSpec.from_dict(described)
    inventory = table["inventory"]
    if isinstance(inventory, Mapping):
        inventory = ",".join(f"{name}:{count}" for name, count in inventory.items())
    if not isinstance(inventory, str):
        raise ValueError(f"'inventory' must be a string or a mapping, got {inventory!r}")
    cluster = Cluster.parse(inventory, custom)
    prices = {
        str(name): read_number(f"usd_per_hour of {name!r}", price)
        for name, price in _mapping(table, "usd_per_hour").items()
    }
    network = _mapping(table, "network")
    keys = ("bandwidth_bytes_per_s", "latency_s")
    check_keys("network", network, known=keys, optional=keys)
    changes = {key: read_number(f"network: {key}", value) for key, value in network.items()}
    return cluster.with_prices(prices).with_network(**changes)


def _mapping(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An optional section of a cluster file; an empty one reads as None in YAML."""
    value = table.get(key) or {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{key!r} must be a mapping, got {value!r}")
    return value
