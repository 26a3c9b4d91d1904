"""Options that ``profile``, ``validate``, ``check`` and ``bench accuracy`` share."""

from __future__ import annotations

import argparse
from pathlib import Path

import jax

from weavejax.cli.common import UsageError, add_cpu_devices, set_cpu_devices
from weavejax.default_plans import TEMPLATES, default_plan
from weavejax.measure.machine import pin_cores, profile_devices
from weavejax.meshes.cluster import Cluster
from weavejax.models.loading import Model, load_model
from weavejax.plan import Plan
from weavejax.profiles import load_profile
from weavejax.serve import load_plan


def add_machine(parser: argparse.ArgumentParser) -> None:
    """Where to run, and with which weights."""
    parser.add_argument("--random-weights", action="store_true", help="a tiny random model")
    parser.add_argument(
        "--cores",
        type=int,
        nargs="+",
        metavar="CORE",
        help="confine the process to these CPU cores; measure and predict on the same number",
    )
    add_cpu_devices(parser)


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Sizes of a default plan."""
    parser.add_argument("--slots", type=int, default=8, help="of a default plan (default 8)")
    parser.add_argument("--context", type=int, metavar="TOKENS", help="of a default plan")
    parser.add_argument("--microbatches", type=int, default=1, help="of a default plan")


def set_machine(options: argparse.Namespace) -> None:
    """Pin the process and set its devices; before JAX is first used."""
    if options.cores:
        try:
            pin_cores(options.cores)
        except ValueError as error:
            raise UsageError(f"--cores: {error}") from error
    set_cpu_devices(options.cpu_devices)


def open_model(options: argparse.Namespace) -> Model:
    """The model a command is about."""
    if options.random_weights:
        return load_model(options.model, random_weights=True, scale="tiny")
    return load_model(options.model)


def open_cluster(cluster: str, profile: str | None) -> str | Cluster:
    """An inventory that may name the devices a profile was measured on; files pass through."""
    if profile is None or Path(cluster).exists():
        return cluster
    here = profile_devices(load_profile(profile).data)
    return Cluster.parse(cluster, here) if here else cluster


def open_plan(options: argparse.Namespace, model: Model) -> Plan:
    """A plan file, or a default plan of a policy for the devices there are."""
    if options.plan not in TEMPLATES:
        return load_plan(options.plan)
    kind = jax.devices()[0].platform
    return default_plan(
        model.config,
        options.plan,
        devices=1 if kind == "cpu" else jax.device_count(),
        device=kind,
        slots=options.slots,
        context=options.context,
        microbatches=options.microbatches,
    )
