"""Device types, clusters and links. Only :mod:`weavejax.meshes.submesh` imports JAX."""

from weavejax.meshes.cluster import Cluster, as_cluster, link_between
from weavejax.meshes.devices import (
    PAPER_INTER_NODE,
    DeviceSpec,
    Link,
    MissingPriceError,
    UnknownDeviceError,
    device_spec,
    known_devices,
)

__all__ = [
    "PAPER_INTER_NODE",
    "Cluster",
    "DeviceSpec",
    "Link",
    "MissingPriceError",
    "UnknownDeviceError",
    "as_cluster",
    "device_spec",
    "known_devices",
    "link_between",
]
