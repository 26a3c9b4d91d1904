"""Operator and link latencies: shipped measurements, interpolation, the analytic model, fitting.

Importing this package does not import JAX; only :mod:`weavejax.profiles.fit` and the importer do.
"""

from weavejax.profiles.estimator import KernelEstimate, Profile, load_profile
from weavejax.profiles.files import ProfileError
from weavejax.profiles.schema import (
    SOURCES,
    DeviceProfile,
    Efficiency,
    Estimate,
    KernelTable,
    LinkFit,
    ProfileData,
    Warp,
)

__all__ = [
    "SOURCES",
    "DeviceProfile",
    "Efficiency",
    "Estimate",
    "KernelEstimate",
    "KernelTable",
    "LinkFit",
    "Profile",
    "ProfileData",
    "ProfileError",
    "Warp",
    "load_profile",
]
