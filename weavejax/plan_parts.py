"""The parts of a plan: templates, device groups, the workload, and what it refers to.

Whole numbers of any kind (numpy's, say) become ``int`` and real ones ``float``, so that equal plans
also hash, print and save alike.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from weavejax.plan_reading import PlanError, keep_strings, keep_whole_numbers, whole_number


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
        keep_whole_numbers(self, "tensor_parallel")
        for name in ("expert_parallel", "attention_data_parallel"):
            keep_whole_numbers(self, name)
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
        keep_whole_numbers(self, "replicas", "resident_batch")
        keep_strings(self, "device", of="a device group")

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
        keep_whole_numbers(self, "layers", "offset", least=None)
        object.__setattr__(self, "cuts", _cuts(self.cuts))
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


def _cuts(cuts: Any) -> tuple[int, ...]:
    rule = f"cuts must be a tuple of whole numbers such as (3,), got {cuts!r}"
    if not isinstance(cuts, Iterable) or isinstance(cuts, (str, bytes, Mapping)):
        raise PlanError(rule)
    try:
        return tuple(whole_number("a cut", cut, least=None) for cut in cuts)
    except PlanError:
        raise PlanError(rule) from None


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is served: decode at a context length, within a latency target."""

    context: int
    """Tokens a slot can hold; for planning, the mean context."""
    tpot_slo_s: float | None = None

    def __post_init__(self) -> None:
        keep_whole_numbers(self, "context")
        slo = self.tpot_slo_s
        if slo is None:
            return
        number = isinstance(slo, numbers.Real) and not isinstance(slo, bool)
        if not (number and math.isfinite(slo) and slo > 0):
            raise PlanError(f"tpot_slo_s must be a positive number of seconds, got {slo!r}")
        object.__setattr__(self, "tpot_slo_s", float(slo))


@dataclass(frozen=True, kw_only=True)
class ModelRef:
    """The model a plan is for. ``config`` is ``ModelConfig.to_dict()``, ``digest`` its hash."""

    name: str
    digest: str
    config: Mapping[str, Any] = dataclasses.field(hash=False)

    def __post_init__(self) -> None:
        keep_strings(self, "name", "digest", of="the model of a plan")


@dataclass(frozen=True, kw_only=True)
class ProfileRef:
    """The latencies a prediction rests on."""

    name: str
    hash: str

    def __post_init__(self) -> None:
        keep_strings(self, "name", "hash", of="the profile of a plan")
