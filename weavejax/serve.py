"""From a model and a plan to a running engine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from weavejax.compilation_cache import keep_compiled_programs
from weavejax.default_plans import TEMPLATES, default_plan
from weavejax.engine import Engine
from weavejax.fold import fold_plan
from weavejax.models.loading import Model, load_model
from weavejax.plan import Plan, PlanError
from weavejax.progress import show_progress
from weavejax.runtime.executor import Executor
from weavejax.schedule import check_plan
from weavejax.workers.backends import Backend, make_launcher, start_workers
from weavejax.workers.launch import Launcher
from weavejax.workers.options import WorkerOptions

if TYPE_CHECKING:
    from jaxlib._jax import Device


def serve(
    model: Model | str | Path,
    plan: Plan | str | os.PathLike[str] = "colocated",
    *,
    devices: Sequence[Device] | None = None,
    oversubscribe: bool | None = None,
    dtype: Any = None,
    slots: int = 8,
    context: int | None = None,
    prefill_chunks: Sequence[int] = (16, 128),
    progress: bool | None = None,
    backend: Backend | Launcher = "in-process",
    address: str | None = None,
    workers: WorkerOptions | None = None,
) -> Engine:
    """Place a model on devices as a plan says, compile its stages and return the engine.

    Compiled programs are kept on disk (:func:`weavejax.keep_compiled_programs`), so that a second
    start is quicker.

    Args:
        model: a loaded model, or anything :func:`weavejax.load_model` takes.
        plan: a :class:`weavejax.Plan`, the path of a plan file, or a policy (``colocated``,
            ``afd``, ``cad``) for a default plan on the devices there are.
        devices: devices to use, all by default. Groups take theirs in order.
        oversubscribe: let groups share devices when there are too few, and fold replicas and
            ranks that have no device of their own: any plan then runs on one device, for
            correctness. By default a policy's name allows it and a given plan does not.
        dtype: of weights and activations; float32 on CPU and bfloat16 elsewhere by default.
        slots: requests served at once, for a default plan.
        context: tokens a slot holds, for a default plan.
        prefill_chunks: token counts that prompts are cut into; one program each.
        progress: show progress bars; by default on a terminal only.
        backend: where device groups run. ``in-process``: on this process's devices, ``devices``.
            ``processes``: every replica in a process of its own on this machine's CPU.
            ``ray``: the same, on the nodes of a Ray cluster (see ``docs/cluster.md``).
        address: of a running Ray cluster; by default one is started on this machine.
        workers: how processes are watched and started again.

    Raises:
        PlanError: the plan does not fit the model or the devices; the message says the rule.
        WorkerError: a worker could not be started; the message says which and why.

    Examples:
        >>> import weavejax as wj
        >>> model = wj.load_model("llama-3.1-8b", random_weights=True, scale="tiny")
        >>> with wj.serve(model, "afd", slots=2, context=32, prefill_chunks=(8,)) as engine:
        ...     [output] = engine.generate([[1, 2, 3]], wj.SamplingParams(max_tokens=4))
        >>> len(output.token_ids), output.finish_reason
        (4, 'length')
    """
    if isinstance(model, (str, Path)):
        model = load_model(model)
    _check_arguments(model, devices, prefill_chunks)
    keep_compiled_programs()
    if backend != "in-process":
        if devices is not None or oversubscribe is not None:
            raise ValueError(
                "devices and oversubscribe place groups inside this process; workers have devices "
                f"of their own, got them with backend={backend!r}"
            )
        if isinstance(plan, str) and plan in TEMPLATES:
            count = TEMPLATES[plan].num_stages
            plan = default_plan(model.config, plan, devices=count, slots=slots, context=context)
        plan, launcher = _as_plan(plan), make_launcher(backend, address, workers)
        running = start_workers(model, plan, launcher, dtype, prefill_chunks, workers)
        return Engine(model, plan, running)
    if address is not None or workers is not None:
        raise ValueError('address and workers need backend="ray" or "processes", got neither')
    available = list(_devices_here() if devices is None else devices)
    share = bool(oversubscribe)
    if isinstance(plan, str) and plan in TEMPLATES:
        share = oversubscribe is not False
        kind = available[0].platform
        # Virtual CPU devices share the same cores: cutting a replica over them gains nothing.
        count = len(available) if kind != "cpu" else 1
        plan = default_plan(
            model.config, plan, devices=count, device=kind, slots=slots, context=context
        )
    plan = _as_plan(plan)
    check_plan(plan, model.config)  # as it is, not as it may be folded
    with show_progress(progress) as report:
        executor = Executor(
            model,
            fold_plan(plan, len(available)) if share else plan,
            devices=available,
            oversubscribe=share,
            dtype=dtype,
            chunks=prefill_chunks,
            progress=report,
        )
    return Engine(model, plan, executor)


def _as_plan(plan: Plan | str | os.PathLike[str]) -> Plan:
    if isinstance(plan, (str, os.PathLike)):
        plan = load_plan(plan)
    if not isinstance(plan, Plan):
        raise TypeError(f"plan must be a Plan, a policy or a plan file, got {plan!r}")
    return plan


def load_plan(plan: str | os.PathLike[str]) -> Plan:
    """Read a plan file.

    Raises:
        PlanError: no such file, or a policy's name, which is planned with first.
    """
    path = Path(plan)
    if not path.exists() and path.suffix != ".json" and len(path.parts) == 1:
        raise PlanError(
            f"plan must be a policy ({', '.join(TEMPLATES)}) or the path of a plan file, "
            f"got {str(plan)!r}, which is neither. Any other policy is planned with first: "
            f"weavejax.plan(model.config, cluster, context, tpot_slo_s, policy={str(plan)!r}), or "
            f"weavejax plan MODEL --policy {plan} -o plan.json"
        )
    return Plan.load(path)


def _check_arguments(
    model: Model, devices: Sequence[Any] | None, prefill_chunks: Sequence[int]
) -> None:
    if not isinstance(model, Model):
        raise TypeError(f"model must be a Model or what load_model takes, got {model!r}")
    if devices is not None and not len(devices):
        raise ValueError("devices must name at least one device, got none")
    chunks = list(prefill_chunks)
    if not chunks or any(type(chunk) is not int or chunk < 1 for chunk in chunks):
        raise ValueError(f"prefill_chunks must be whole numbers >= 1, got {chunks}")


def _devices_here() -> list[Device]:
    """JAX's devices.

    Raises:
        ValueError: JAX was told to use a platform that it does not find.
    """
    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as error:  # JAX asserts that some platform came up
        wanted = jax.config.jax_platforms  # type: ignore[attr-defined]
        reason = f" ({error})" if str(error) else ""
        raise ValueError(
            f"JAX finds no device of the platforms it was told to use, got {wanted!r} "
            f"(JAX_PLATFORMS or jax.config); leave it unset to take what there is{reason}"
        ) from error
