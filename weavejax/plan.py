"""The plan: which operators run on which device group, at what batch. Plain data, JSON in and out.

Planner and runtime meet here: the planner writes plans, the runtime executes them, and neither
knows the other.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weavejax.meshes.cluster import Cluster
from weavejax.plan_reading import (
    PlanError,
    read_fields,
    read_integer,
    read_part,
    whole_number,
)
from weavejax.prediction import Prediction

PLAN_FORMAT = "weavejax.plan/1"


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """How one replica of a group cuts its operators over its devices."""

    tensor_parallel: int = 1
    """Devices of one replica: the size of the model axis."""
    expert_parallel: int = 1
    """Ways the experts are cut over those devices; the rest cuts each expert's hidden width."""
    attention_data_parallel: int = 1
    """Ways the rows are cut for the attention operators; the rest cuts the heads."""

    def __post_init__(self) -> None:
        whole_number("tensor_parallel", self.tensor_parallel)
        for name in ("expert_parallel", "attention_data_parallel"):
            value = getattr(self, name)
            if value not in (1, self.tensor_parallel):
                raise PlanError(
                    f"{name} must be 1 or tensor_parallel={self.tensor_parallel} "
                    f"(it cuts the same devices), got {value}"
                )

    @property
    def heads_ways(self) -> int:
        """Ranks the attention heads are cut over."""
        return self.tensor_parallel // self.attention_data_parallel


@dataclass(frozen=True, kw_only=True)
class DeviceGroup(Parallelism):
    """One of the K ordered owners of stages."""

    device: str
    """Device type, a name of the cluster: ``h100-sxm``, ``cpu``."""
    replicas: int = 1
    resident_batch: int
    """Rows (slots) one replica holds, over all microbatches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("replicas", "resident_batch"):
            whole_number(name, getattr(self, name))

    @property
    def num_devices(self) -> int:
        return self.replicas * self.tensor_parallel

    @property
    def batch(self) -> int:
        """Rows of all replicas: the global resident batch."""
        return self.replicas * self.resident_batch

    @property
    def parallelism(self) -> Parallelism:
        return Parallelism(
            tensor_parallel=self.tensor_parallel,
            expert_parallel=self.expert_parallel,
            attention_data_parallel=self.attention_data_parallel,
        )


@dataclass(frozen=True, kw_only=True)
class Template:
    """Cut positions inside a sub-block of ``layers`` layers, in operators (four a layer).

    A cut at c stands before operator c of the sub-block, counted from ``offset`` operators after
    a layer boundary. Stage positions belong to the groups in turn.

    Examples:
        >>> Template(layers=1, cuts=(3,))            # AFD: attention | feed-forward
        Template(layers=1, cuts=(3,), offset=0)
        >>> Template(layers=1, cuts=(1,), offset=1)  # CAD: attn_core | everything else
        Template(layers=1, cuts=(1,), offset=1)
    """

    layers: int = 1
    cuts: tuple[int, ...] = ()
    offset: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "cuts", tuple(self.cuts))
        if self.layers < 1:
            raise PlanError(f"a template spans at least one layer, got layers={self.layers}")
        if list(self.cuts) != sorted(set(self.cuts)) or any(
            not 0 < cut < self.num_operators for cut in self.cuts
        ):
            raise PlanError(
                f"cuts must rise strictly and lie inside the sub-block, between 1 and "
                f"{self.num_operators - 1} ({self.layers} layers of 4 operators), got "
                f"{list(self.cuts)}"
            )
        tail = self.num_operators - max(self.cuts, default=1)
        if not 0 <= self.offset <= tail:
            raise PlanError(
                f"offset must lie between 0 and {tail}, the length of the last stage (the "
                f"operators before the first block are its tail), got {self.offset}; start the "
                "template at an earlier cut instead"
            )

    @property
    def num_operators(self) -> int:
        return 4 * self.layers

    @property
    def num_stages(self) -> int:
        return len(self.cuts) + 1


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is served: decode at a context length, within a latency target."""

    context: int
    """Tokens a slot can hold; for planning, the mean context."""
    tpot_slo_s: float | None = None

    def __post_init__(self) -> None:
        whole_number("context", self.context)
        slo = self.tpot_slo_s
        number = isinstance(slo, (int, float)) and not isinstance(slo, bool)
        if slo is not None and not (number and math.isfinite(slo) and slo > 0):
            raise PlanError(f"tpot_slo_s must be a positive number of seconds, got {slo!r}")


@dataclass(frozen=True, kw_only=True)
class ModelRef:
    """The model a plan is for. ``config`` is ``ModelConfig.to_dict()``, ``digest`` its hash."""

    name: str
    digest: str
    config: Mapping[str, Any] = dataclasses.field(hash=False)


@dataclass(frozen=True, kw_only=True)
class ProfileRef:
    """The latencies a prediction rests on."""

    name: str
    hash: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One way to serve a model. See :class:`Template` and :class:`DeviceGroup` for the parts.

    Raises:
        PlanError: stages that do not divide over the groups, batches that differ between groups
            or do not divide into microbatches.
    """

    model: ModelRef
    workload: Workload
    template: Template
    groups: tuple[DeviceGroup, ...]
    microbatches: int = 1
    policy: str = "custom"
    cluster: Cluster | None = None
    """Prices and links the prediction used."""
    prediction: Prediction | None = None
    profile: ProfileRef | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(self.groups))
        if not self.groups:
            raise PlanError("a plan needs at least one device group, got none")
        if self.template.num_stages % len(self.groups):
            raise PlanError(
                f"stages of the template must be a multiple of the {len(self.groups)} groups "
                f"(stage j belongs to group j mod K), got {self.template.num_stages} stages"
            )
        whole_number("microbatches", self.microbatches)
        batches = [group.batch for group in self.groups]
        if len(set(batches)) > 1:
            raise PlanError(
                "replicas x resident_batch must be the same global batch in every group, got "
                + ", ".join(f"{g.replicas} x {g.resident_batch}" for g in self.groups)
            )
        for index, group in enumerate(self.groups):
            ways = self.microbatches * group.attention_data_parallel
            if group.resident_batch % ways:
                raise PlanError(
                    f"group {index}: resident_batch must divide by microbatches x "
                    f"attention_data_parallel = {ways}, got {group.resident_batch}"
                )

    @property
    def batch(self) -> int:
        """Global resident batch: slots of the engine."""
        return self.groups[0].batch

    @property
    def microbatch_rows(self) -> int:
        """Rows of one microbatch over all replicas."""
        return self.batch // self.microbatches

    @property
    def num_devices(self) -> int:
        return sum(group.num_devices for group in self.groups)

    def replace(self, **changes: Any) -> Plan:
        """A copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = {"format": PLAN_FORMAT, "policy": self.policy}
        data["model"] = {
            "name": self.model.name,
            "digest": self.model.digest,
            "config": dict(self.model.config),
        }
        data["workload"] = dataclasses.asdict(self.workload)
        data["template"] = {
            "layers": self.template.layers,
            "cuts": list(self.template.cuts),
            "offset": self.template.offset,
        }
        data["groups"] = [
            {"device": group.device} | dataclasses.asdict(group) for group in self.groups
        ]
        data["microbatches"] = self.microbatches
        if self.cluster is not None:
            data["cluster"] = self.cluster.to_dict()
        if self.profile is not None:
            data["profile"] = dataclasses.asdict(self.profile)
        if self.prediction is not None:
            data["prediction"] = self.prediction.to_dict()
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Read what :meth:`to_dict` wrote.

        Raises:
            PlanError: another format, a missing or unknown field, or a rule above.
        """
        if not isinstance(data, Mapping):
            raise PlanError(f"a plan is a JSON object, got {type(data).__name__}")
        if data.get("format") != PLAN_FORMAT:
            raise PlanError(
                f'a plan file starts with "format": {PLAN_FORMAT!r}, got {data.get("format")!r}'
            )
        known = {"format", *(f.name for f in dataclasses.fields(cls))}
        unknown = sorted(set(data) - known)
        if unknown:
            raise PlanError(f"a plan has no field {', '.join(unknown)}; it has {sorted(known)}")
        groups, policy = data.get("groups"), data.get("policy", "custom")
        if not isinstance(groups, (list, tuple)):
            raise PlanError(f"groups must be a list of objects, got {groups!r}")
        if not isinstance(policy, str):
            raise PlanError(f"policy must be a string, got {policy!r}")
        return cls(
            model=read_fields(ModelRef, data, "model"),
            workload=read_fields(Workload, data, "workload"),
            template=read_fields(Template, data, "template"),
            groups=tuple(
                read_fields(DeviceGroup, {f"groups[{index}]": group}, f"groups[{index}]")
                for index, group in enumerate(groups)
            ),
            microbatches=read_integer(data, "microbatches"),
            policy=policy,
            cluster=read_part(Cluster, data, "cluster"),
            profile=None
            if data.get("profile") is None
            else read_fields(ProfileRef, data, "profile"),
            prediction=read_part(Prediction, data, "prediction"),
        )

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, two spaces deep, keys in a fixed order."""
        Path(path).write_text(self.dumps() + "\n")

    def dumps(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan file.

        Raises:
            PlanError: the file is missing, is no JSON, or breaks a rule; the message names it.
        """
        try:
            data = json.loads(Path(path).read_text())
        except FileNotFoundError:
            raise PlanError(f"plan file {str(path)!r} does not exist") from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise PlanError(f"plan file {str(path)!r} is not JSON: {error}") from None
        try:
            return cls.from_dict(data)
        except PlanError as error:
            raise PlanError(f"{path}: {error}") from None
