"""The plan: which operators run on which device group, at what batch. Plain data, JSON in and out.

Planner and runtime meet here: the planner writes plans, the runtime executes them, and neither
knows the other.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weavejax.meshes.cluster import Cluster
from weavejax.plan_parts import (
    DeviceGroup,
    ModelRef,
    Parallelism,
    ProfileRef,
    Template,
    Workload,
)
from weavejax.plan_reading import (
    PlanError,
    keep_strings,
    keep_whole_numbers,
    plain_data,
    read_fields,
    read_integer,
    read_part,
    require_type,
)
from weavejax.prediction import Prediction

__all__ = [
    "PLAN_FORMAT",
    "DeviceGroup",
    "ModelRef",
    "Parallelism",
    "Plan",
    "PlanError",
    "ProfileRef",
    "Template",
    "Workload",
]

PLAN_FORMAT = "weavejax.plan/1"


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
    search_limits: Mapping[str, Any] | None = dataclasses.field(default=None, hash=False)
    """The grid it was searched in, ``SearchLimits.to_dict()``; None for a plan made by hand."""

    def __post_init__(self) -> None:
        self._check_types()
        if not self.groups:
            raise PlanError("a plan needs at least one device group, got none")
        if self.template.num_stages % len(self.groups):
            raise PlanError(
                f"stages of the template must be a multiple of the {len(self.groups)} groups "
                f"(stage j belongs to group j mod K), got {self.template.num_stages} stages"
            )
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

    def _check_types(self) -> None:
        """Every part of its type, and whole numbers as ``int``, so that the plan can be saved."""
        require_type("model", self.model, ModelRef)
        require_type("workload", self.workload, Workload)
        require_type("template", self.template, Template)
        if not isinstance(self.groups, Iterable):
            raise PlanError(f"groups must be a tuple of device groups, got {self.groups!r}")
        object.__setattr__(self, "groups", tuple(self.groups))
        for index, group in enumerate(self.groups):
            require_type(f"groups[{index}]", group, DeviceGroup)
        keep_whole_numbers(self, "microbatches")
        keep_strings(self, "policy", of="a plan")
        limits = self.search_limits
        if limits is not None:
            if not isinstance(limits, Mapping):
                raise PlanError(f"search_limits must be an object, got {limits!r}")
            object.__setattr__(self, "search_limits", plain_data("search_limits", dict(limits)))

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
        if self.search_limits is not None:
            data["search_limits"] = dict(self.search_limits)
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
            search_limits=data.get("search_limits"),
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
