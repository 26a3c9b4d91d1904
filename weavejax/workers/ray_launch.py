"""Ray places, starts and watches the workers; needs the ``ray`` extra.

One Ray actor supervises each worker and starts it as its child process: pinned and with a clean
JAX, and ended at once when it must be, even while it is stopped. Rows and commands never pass
through Ray.

A worker of device type ``h100-sxm`` with 2 devices asks Ray for 2 of the node resource
``h100-sxm`` and, where nodes have GPUs, 2 GPUs. A worker on CPU asks for one core where the
cluster has one for each, and for none otherwise.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from typing import Any

from weavejax.plan import Plan, PlanError
from weavejax.workers.launch import Place, ProcessHost, deal_cores
from weavejax.workers.orders import Orders
from weavejax.workers.share import WorkerName, worker_names

_PLACE_TIMEOUT_S = 60.0
_CALL_TIMEOUT_S = 10.0
_GONE = -9
"""Status of a worker whose supervisor is gone: it was killed with it."""


class _Supervisor:
    """Lives on a worker's node, as a Ray actor."""

    def __init__(self) -> None:
        self._host = ProcessHost()

    def node(self) -> tuple[str, str, list[int]]:
        """(node, its address, cores this process may use)."""
        import ray

        context = ray.get_runtime_context()
        cores = sorted(os.sched_getaffinity(0))
        return context.get_node_id(), ray.util.get_node_ip_address(), cores

    def start(self, name: str, orders: dict[str, Any], environment: dict[str, str]) -> int:
        return self._host.start(name, orders, environment=environment)

    def exit_status(self, name: str) -> int | None:
        return self._host.exit_status(name)

    def log_tail(self, name: str) -> str:
        return self._host.log_tail(name)

    def kill(self) -> None:
        self._host.kill()


class RayLauncher:
    """Workers on the nodes of a Ray cluster.

    Args:
        address: of a running cluster (``host:6379`` or ``auto``); by default one is started on
            this machine alone and ended with the launcher.
        platform: JAX platform of the workers where it is not the device type's own.

    Raises:
        ImportError: Ray is not installed.
    """

    def __init__(self, address: str | None = None, *, platform: str | None = None):
        self._ray = _import_ray()
        self._platform = platform
        self._owns = not self._ray.is_initialized()
        if self._owns:
            settings: dict[str, Any] = {"address": address}
            if address is None:
                settings = {"include_dashboard": False}
            self._ray.init(log_to_driver=False, configure_logging=False, **settings)
        self._actors: dict[WorkerName, Any] = {}
        self._bundles: list[dict[str, float]] = []
        self._group: Any = None

    # -- placing -------------------------------------------------------------------------------

    def place(self, plan: Plan, interface: str) -> dict[WorkerName, Place]:
        """Reserve every worker's resources together and find out where they are.

        Raises:
            PlanError: the cluster has not what the plan asks for.
        """
        names = worker_names(plan)
        self._names = names
        self._bundles = [self._bundle(plan, name) for name in names]
        self._group = self._ray.util.placement_group(self._bundles, strategy="PACK")
        if not self._group.wait(_PLACE_TIMEOUT_S):
            raise PlanError(
                f"the workers need {_summed(self._bundles)} together, each on one node; the "
                f"cluster has {self._resources()}. A device type is a node resource: "
                "ray start --resources='{\"h100-sxm\": 8}'"
            )
        nodes: dict[WorkerName, tuple[str, str, list[int]]] = {
            name: self._call(name, "node") for name in names
        }
        return _places(nodes, interface, self._ray.get_runtime_context().get_node_id())

    def _bundle(self, plan: Plan, name: WorkerName) -> dict[str, float]:
        group = plan.groups[name.group]
        there = self._resources()
        if group.device == "cpu" or self._platform == "cpu":
            enough = there.get("CPU", 0) >= len(self._names)
            return {"CPU": 1.0} if enough else {"node:__internal_head__": 0.001}
        need: dict[str, float] = {group.device: group.tensor_parallel}
        if there.get("GPU", 0):
            need["GPU"] = group.tensor_parallel
        return need

    def _resources(self) -> dict[str, float]:
        return {
            name: count
            for name, count in self._ray.cluster_resources().items()
            if not name.startswith(("node:", "memory", "object_store"))
        }

    # -- processes -----------------------------------------------------------------------------

    def start(self, name: WorkerName, orders: Orders) -> None:
        """Start a worker under its supervisor."""
        # XLA's and JAX's own settings are this process's, wherever the worker runs.
        shared = {k: v for k, v in os.environ.items() if k.startswith(("JAX_", "XLA_"))}
        self._call(name, "start", str(name), orders.to_dict(), shared)

    def exit_status(self, name: WorkerName) -> int | None:
        ray = self._ray
        try:
            return ray.get(self._actor(name).exit_status.remote(str(name)), timeout=1.0)
        except ray.exceptions.GetTimeoutError:
            return None  # unknown: silence is noticed by itself
        except ray.exceptions.RayError:
            return _GONE

    def log_tail(self, name: WorkerName) -> str:
        return self._call(name, "log_tail", str(name))

    def kill(self) -> None:
        """End all workers; a supervisor that does not answer is ended with its worker."""
        ray = self._ray
        if not ray.is_initialized():
            return
        calls = {name: actor.kill.remote() for name, actor in self._actors.items()}
        for name, call in calls.items():
            try:
                ray.get(call, timeout=_CALL_TIMEOUT_S)
            except ray.exceptions.RayError:
                ray.kill(self._actors.pop(name))

    def close(self) -> None:
        """End supervisors, give resources back, and end Ray where this launcher started it."""
        ray = self._ray
        if not ray.is_initialized():
            return
        for actor in self._actors.values():
            ray.kill(actor)
        self._actors.clear()
        if self._group is not None:
            ray.util.remove_placement_group(self._group)
            self._group = None
        if self._owns:
            ray.shutdown()

    def _actor(self, name: WorkerName) -> Any:
        """A worker's supervisor, started again where it is gone."""
        if name not in self._actors:
            index = self._names.index(name)
            bundle = dict(self._bundles[index])
            strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
            self._actors[name] = (
                self._ray.remote(_Supervisor)
                .options(
                    num_cpus=bundle.pop("CPU", 0),
                    num_gpus=bundle.pop("GPU", 0),
                    resources=bundle,
                    scheduling_strategy=strategy(self._group, index),
                )
                .remote()
            )
        return self._actors[name]

    def _call(self, name: WorkerName, method: str, *arguments: Any) -> Any:
        call = getattr(self._actor(name), method).remote(*arguments)
        return self._ray.get(call, timeout=_PLACE_TIMEOUT_S)


def _places(
    nodes: Mapping[WorkerName, tuple[str, str, list[int]]], interface: str, here: str
) -> dict[WorkerName, Place]:
    """Interfaces and cores of workers, node by node.

    Raises:
        PlanError: workers on other nodes, and a coordinator that listens on loopback.
    """
    loopback = ipaddress.ip_address(interface).is_loopback
    places: dict[WorkerName, Place] = {}
    for node in {node for node, _, _ in nodes.values()}:
        mine = [name for name, place in nodes.items() if place[0] == node]
        if loopback and node != here:
            raise PlanError(
                f"worker {mine[0]} is on another node ({nodes[mine[0]][1]}), which cannot reach "
                f"the coordinator on {interface}; give interface= an address of this host"
            )
        shares = deal_cores(nodes[mine[0]][2], len(mine))
        for name, cores in zip(mine, shares, strict=True):
            address = interface if node == here else nodes[name][1]
            places[name] = Place(interface=address, cores=cores, host=nodes[name][1])
    return {name: places[name] for name in nodes}


def _summed(bundles: list[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for bundle in bundles:
        for name, count in bundle.items():
            total[name] = total.get(name, 0) + count
    return total


def _import_ray() -> Any:
    try:
        import ray
        import ray.util.placement_group
        import ray.util.scheduling_strategies
    except ImportError:
        raise ImportError(
            'backend="ray" needs Ray, which is not installed; run\n    pip install "weavejax[ray]"'
        ) from None
    return ray
