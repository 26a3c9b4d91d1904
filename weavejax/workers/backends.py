"""From the name of a backend to running workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from weavejax.models.loading import Model
from weavejax.plan import Plan
from weavejax.schedule import check_plan
from weavejax.workers.executor import ClusterExecutor
from weavejax.workers.launch import Launcher, LocalLauncher
from weavejax.workers.options import WorkerOptions

Backend = Literal["in-process", "processes", "ray"]


def make_launcher(
    backend: str | Launcher, address: str | None = None, options: WorkerOptions | None = None
) -> Launcher:
    """What starts the workers of a backend; a launcher stands for itself.

    Raises:
        ValueError: no such backend, or an address that it has no use for.
        ImportError: Ray is asked for and not installed.
    """
    platform = None if options is None else options.platform
    if address is not None and backend != "ray":
        raise ValueError(f'address is of a Ray cluster and needs backend="ray", got {backend!r}')
    if not isinstance(backend, str):
        return backend
    if backend == "processes":
        return LocalLauncher(platform=platform)
    if backend == "ray":
        # Here, because Ray is an extra and slow to import.
        from weavejax.workers.ray_launch import RayLauncher

        return RayLauncher(address, platform=platform)
    raise ValueError(f"backend must be one of {', '.join(get_args(Backend))}, got {backend!r}")


def start_workers(
    model: Model,
    plan: Plan,
    launcher: Launcher,
    dtype: Any,
    chunks: Sequence[int],
    options: WorkerOptions | None,
) -> ClusterExecutor:
    """Start the workers of a plan; ends what the launcher began when they cannot be.

    Raises:
        PlanError: the plan does not fit the model, or the machines do not fit the plan.
        WorkerError: a worker did not start.
    """
    try:
        check_plan(plan, model.config)
        return ClusterExecutor(model, plan, launcher, dtype=dtype, chunks=chunks, options=options)
    except BaseException:
        launcher.close()
        raise
