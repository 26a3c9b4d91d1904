"""From kernels to operators: the answers the planner asks a profile for.

An operator's time is the sum of its kernels' on one rank, plus the collective that tensor or
expert parallelism needs after it. Rules:

* Rows of attention operators are cut over ``attention_data_parallel``, heads over the rest; every
  other operator sees all rows. The slowest rank decides, so rows round up.
* ``Elementwise`` work is charged by its traffic, with no launch of its own: engines fuse it.
* Experts are cut over ``expert_parallel``, or else their width over ``tensor_parallel``.
* After an operator with ``all_reduce_elements`` the model axis sums them. Under data-parallel
  attention ``attn_out`` gathers its rows and ``ffn`` scatters them instead: half an all-reduce
  each. This also is the experts' dispatch and combine: every rank holds all rows, computes its
  experts and joins the sum. (Measured DeepEP all-to-alls inside a node, 100 to 400 us an exchange,
  are never faster at decode sizes.)
* An operator that was timed whole, under the same parallelism, is answered by that time instead.
* An operator is tagged by its weakest kernel among those that carry at least a quarter of its time.
"""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from weavejax.meshes import DeviceSpec, Link, device_spec, link_between
from weavejax.models.specs import OperatorSpec
from weavejax.plan import DeviceGroup
from weavejax.profiles.analytic import analytic_device
from weavejax.profiles.files import ProfileError, content_hash, load_data, save_data
from weavejax.profiles.kernels import operator_kernels
from weavejax.profiles.operator_times import OperatorTimes
from weavejax.profiles.schema import ANALYTIC, DERIVED, MEASURED, SOURCES, Estimate, LinkFit
from weavejax.profiles.schema import ProfileData as ProfileData
from weavejax.profiles.tables import Answer, KernelLookup

TAG_SHARE = 0.25
"""Kernels with a smaller share of the operator's time do not weaken its tag."""
_SHIPPED = "nvidia-measured"


@dataclass(frozen=True, kw_only=True)
class KernelEstimate:
    """One kernel of an operator, for people who ask where the time goes."""

    kernel: str
    time_s: float
    source: str


class Profile:
    """Latencies of operators and moves, by device type.

    Devices the data does not hold are answered by the analytic model from their
    :class:`~weavejax.meshes.DeviceSpec`: the given ``devices`` first, then the known ones.

    Examples:
        >>> from weavejax.models import operator_sequence, preset_config
        >>> from weavejax.plan import DeviceGroup
        >>> profile = load_profile()
        >>> ffn = operator_sequence(preset_config("gemma-3-27b"))[4]
        >>> group = DeviceGroup(device="h100-sxm", tensor_parallel=2, resident_batch=64)
        >>> profile.operator_time_s(ffn, group, batch=64, context=32_768).source
        'measured'
    """

    def __init__(
        self,
        data: ProfileData,
        *,
        devices: Mapping[str, DeviceSpec] | None = None,
        microbatches: int = 1,
    ) -> None:
        self.data = data
        self._specs = dict(devices or {})
        self._microbatches = microbatches
        self._lookups: dict[str, KernelLookup] = {}

    @property
    def name(self) -> str:
        return self.data.name

    @functools.cached_property
    def hash(self) -> str:
        """sha256 of the content: plans name it so that their prediction can be checked."""
        return content_hash(self.data)

    def with_devices(self, devices: Mapping[str, DeviceSpec]) -> Profile:
        """The same profile that also knows user-defined device types."""
        specs = {**self._specs, **devices}
        return Profile(self.data, devices=specs, microbatches=self._microbatches)

    def with_microbatches(self, microbatches: int) -> Profile:
        """The same profile for operators that run this many microbatches in a row.

        Only operators timed whole tell the first from the next; without any this is ``self``.
        """
        timed = any(device.operators for device in self.data.devices.values())
        if not timed or microbatches == self._microbatches:
            return self
        return Profile(self.data, devices=self._specs, microbatches=microbatches)

    @property
    def element_bytes(self) -> int:
        """Bytes of a weight or activation as measured, the widest of its devices; 2 by default."""
        return max((device.element_bytes for device in self.data.devices.values()), default=2)

    @property
    def stage_overheads_s(self) -> dict[str, float]:
        """Device to the fixed seconds of every execution of a stage, where they were measured."""
        return {name: device.stage_overhead_s for name, device in self.data.devices.items()}

    def save(self, path: str | Path) -> None:
        """Writes one ``.npz`` file; :meth:`load` gives an equal profile back."""
        save_data(self.data, path)

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Reads a profile file.

        Raises:
            ProfileError: no such file or not a profile; the message says which rule it breaks.
        """
        return cls(load_data(path))

    def operator_time_s(
        self, operator: OperatorSpec, group: DeviceGroup, batch: int, context: int
    ) -> Estimate:
        """Seconds of one operator for ``batch`` rows of one replica of ``group``."""
        times_s, codes = self.operator_times_s(operator, group, np.array([batch]), context)
        return Estimate(float(times_s[0]), SOURCES[int(codes[0])])

    def operator_times_s(
        self, operator: OperatorSpec, group: DeviceGroup, batches: np.ndarray, context: int
    ) -> Answer:
        """(seconds, source codes) at every batch: rows of one replica in one microbatch.

        A code is the position in :data:`~weavejax.profiles.schema.SOURCES`.

        Raises:
            ValueError: a batch or a context below 1.
        """
        batches = np.asarray(batches, dtype=float)
        if not batches.size or batches.min() < 1 or context < 1:
            raise ValueError(
                f"operator times need batches and a context of at least 1, got batches "
                f"{batches.tolist()[:8]} and context {context}"
            )
        whole = self.lookup(group.device).timed(operator, group)
        if whole is not None:
            return self._timed(whole, operator, group, batches, context)
        parts = [answer for _, answer in self._kernels(operator, group, batches, context)]
        if not parts:
            return np.zeros(batches.shape), np.full(batches.shape, ANALYTIC)
        times_s = np.stack([time_s for time_s, _ in parts])
        total_s = times_s.sum(0)
        counted = np.where(times_s >= TAG_SHARE * total_s, np.stack([c for _, c in parts]), 0)
        return total_s, counted.max(0)

    def operator_breakdown(
        self, operator: OperatorSpec, group: DeviceGroup, batch: int, context: int
    ) -> tuple[KernelEstimate, ...]:
        """The kernels of one operator with their seconds and sources."""
        parts = self._kernels(operator, group, np.array([float(batch)]), context)
        return tuple(
            KernelEstimate(kernel=name, time_s=float(time_s[0]), source=SOURCES[int(code[0])])
            for name, (time_s, code) in parts
        )

    def transfer_time_s(
        self,
        source: DeviceSpec,
        destination: DeviceSpec,
        *,
        sent_bytes: float,
        received_bytes: float | None = None,
        source_links: int = 1,
        destination_links: int = 1,
        same_node: bool = False,
    ) -> Estimate:
        """Seconds to move a boundary's tensors between one replica of each of two groups.

        ``sent_bytes`` leave the source replica over ``source_links`` of its devices, and
        ``received_bytes`` (the same if None) reach the destination over its ``destination_links``;
        the slower endpoint decides: latency + bytes / bandwidth. The links are the specs'; the
        answer is ``measured`` where they are what this profile measured between such devices.

        Raises:
            ValueError: negative bytes, or no links.

        Examples:
            >>> h100 = device_spec("h100-sxm")
            >>> load_profile().transfer_time_s(h100, h100, sent_bytes=32e6).time_s
            0.00102
        """
        received_bytes = sent_bytes if received_bytes is None else received_bytes
        if min(sent_bytes, received_bytes) < 0 or min(source_links, destination_links) < 1:
            raise ValueError(
                f"a transfer needs bytes >= 0 and links >= 1, got {sent_bytes} and "
                f"{received_bytes} bytes over {source_links} and {destination_links} links"
            )
        link = link_between(source, destination, same_node=same_node)
        ends = (
            (sent_bytes, source_links, source),
            (received_bytes, destination_links, destination),
        )
        time_s = link.latency_s + max(
            amount / (links * _end(spec, same_node).bandwidth_bytes_per_s)
            for amount, links, spec in ends
        )
        kind = "intra_node" if same_node else "inter_node"
        measured = source.name == destination.name and self._measured_link(source.name, kind, link)
        return Estimate(time_s, "measured" if measured else "analytic")

    def lookup(self, device: str) -> KernelLookup:
        """The kernel tables of one device type.

        Raises:
            weavejax.meshes.UnknownDeviceError: a name nobody describes.
        """
        if device not in self._lookups:
            found = self.data.devices.get(device)
            if found is None:
                spec = device_spec(device, self._specs)
                found = self.data.devices.get(spec.name) or analytic_device(spec)
            self._lookups[device] = KernelLookup(found)
        return self._lookups[device]

    def _timed(
        self,
        whole: OperatorTimes,
        operator: OperatorSpec,
        group: DeviceGroup,
        batches: np.ndarray,
        context: int,
    ) -> Answer:
        """Outside the grid the analytic model goes on, scaled to agree at the edge."""
        times_s, inside = whole.at(batches, context, microbatches=self._microbatches)
        if operator.layer is not None:  # timed as a stage of its own
            overhead_s = self.stage_overheads_s.get(group.device, 0.0)
            times_s = np.maximum(times_s - overhead_s, 0.0)
        if not inside.all():
            there, edge = (
                sum(time_s for _, (time_s, _) in self._kernels(operator, group, *point))
                for point in ((batches, context), whole.nearest(batches, context))
            )
            times_s = np.where(inside, times_s, times_s * there / edge)
        return times_s, np.where(inside, MEASURED, DERIVED)

    def _kernels(
        self, operator: OperatorSpec, group: DeviceGroup, batches: np.ndarray, context: int
    ) -> Iterator[tuple[str, Answer]]:
        return operator_kernels(self.lookup(group.device), operator, group, batches, context)

    def _measured_link(self, device: str, kind: str, link: Link) -> bool:
        found = self.data.devices.get(device)
        fit = None if found is None else found.links.get(kind)
        return fit == LinkFit(
            bandwidth_bytes_per_s=link.bandwidth_bytes_per_s, latency_s=link.latency_s
        )


def _end(spec: DeviceSpec, same_node: bool) -> Link:
    return spec.intra_node if same_node else spec.inter_node


@functools.cache
def load_profile(name: str = _SHIPPED) -> Profile:
    """The shipped profile ``nvidia-measured``, or a profile file by its path.

    Raises:
        ProfileError: neither a shipped name nor a file.
    """
    shipped = importlib.resources.files("weavejax.profiles") / "data"
    if name == _SHIPPED:
        with importlib.resources.as_file(shipped / f"{name}.npz") as path:
            return Profile.load(path)
    if not Path(name).exists():
        raise ProfileError(f"no profile {name!r}: give {_SHIPPED!r} or the path of a profile file")
    return Profile.load(name)
