"""Rebuilds the shipped profile from the measurements published in ``aiconfigurator-core``.

    pip install --no-deps aiconfigurator-core==0.12.0 && pip install pyarrow
    python -m weavejax.profiles.importer OUT.npz

Reads the Parquet files directly, keeps bfloat16 decode kernels as compact tables and fits the
analytic and warp parameters to them. :mod:`weavejax.profiles.sources` says which tables and why.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weavejax.profiles.fit import fit_device
from weavejax.profiles.schema import KERNEL_AXES, DeviceProfile, KernelTable, ProfileData
from weavejax.profiles.sources import (
    ATTRIBUTION,
    DEVICES,
    EXPERT_DISTRIBUTION,
    MAX_EXPERT_WAYS,
    PROFILE_NAME,
    DeviceSource,
)

Columns = dict[str, np.ndarray]
_MANTISSA_BITS = 12
"""kept of 23: times are rounded to 1.2e-4 relative, which halves the file"""
_SPIKE = 2.0


def build(
    source_dir: str | Path, devices: Sequence[DeviceSource] = DEVICES, *, fit: bool = True
) -> ProfileData:
    """Builds the profile from ``<source_dir>/data/<system>/<family>/<framework>/<version>/``.

    Raises:
        FileNotFoundError: a system has none of its tables under ``source_dir``.
    """
    root = Path(source_dir)
    profiles = {}
    for source in devices:
        tables = read_tables(root, source)
        if not tables:
            raise FileNotFoundError(
                f"no tables of {source.system!r} under {root}; expected "
                f"data/{source.system}/gemm/{source.gemm}/gemm_perf.parquet and its siblings"
            )
        device = DeviceProfile(
            device=source.device,
            bandwidth_bytes_per_s=source.bandwidth_bytes_per_s,
            bf16_flop_per_s=source.bf16_flop_per_s,
            link_bandwidth_bytes_per_s=source.link_bandwidth_bytes_per_s,
            multiprocessors=source.multiprocessors,
            tables=tables,
            links=dict(source.links),
            attributes={"experts_distribution": EXPERT_DISTRIBUTION, "statistic": "median"},
        )
        profiles[source.device] = fit_device(device) if fit else device
    return ProfileData(name=PROFILE_NAME, devices=profiles, attribution=ATTRIBUTION)


def read_tables(root: Path, source: DeviceSource) -> dict[str, KernelTable]:
    """The compact tables of one system; a kernel whose file is absent is left out."""
    readers: tuple[tuple[str, str, str, str, Callable[[Columns], Columns]], ...] = (
        ("gemm", "gemm", source.gemm, "gemm_perf", _gemm),
        ("attention", "attention", source.attention, "generation_attention_perf", _attention),
        ("experts", "moe", source.other, "moe_perf", _experts),
        ("delta_net", "linear_attention", source.other, "gdn_perf", _delta_net),
        ("all_reduce", "comm", source.other, "custom_allreduce_perf", _all_reduce),
    )
    tables = {}
    for kind, family, version, name, select in readers:
        path = root / "data" / source.system / family / version / f"{name}.parquet"
        if path.exists():
            columns = select(_read_parquet(path))
            tables[kind] = _table(kind, columns, f"{version} {name} on {source.system}")
    return tables


def _read_parquet(path: Path) -> Columns:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise ImportError(
            "rebuilding a profile reads Parquet files and needs pyarrow: pip install "
            "'weavejax[import]'"
        ) from None
    table = parquet.read_table(path)
    return {name: np.asarray(table[name].to_pylist()) for name in table.column_names}


def _where(columns: Columns, keep: np.ndarray) -> Columns:
    return {name: values[keep] for name, values in columns.items()}


def _gemm(columns: Columns) -> Columns:
    return _where(columns, columns["gemm_dtype"] == "bfloat16")


def _attention(columns: Columns) -> Columns:
    rows = len(columns["latency"])
    keep = (columns["attn_dtype"] == "bfloat16") & (columns["kv_cache_dtype"] == "bfloat16")
    columns = {
        **columns,
        "q_heads": columns["num_heads"],
        "kv_heads": columns["num_key_value_heads"],
        "window": columns.get("window_size", np.zeros(rows, dtype=int)),
        "batch": columns["batch_size"],
        "context": columns["step"] + 1,
    }
    return _where(columns, keep)


def _experts(columns: Columns) -> Columns:
    tensor, expert = columns["moe_tp_size"], columns["moe_ep_size"]
    keep = (columns["moe_dtype"] == "bfloat16") & (columns["distribution"] == EXPERT_DISTRIBUTION)
    # a group cuts its experts either over experts or over their width
    keep &= (tensor * expert <= MAX_EXPERT_WAYS) & ((tensor == 1) | (expert == 1))
    columns = {
        **columns,
        "hidden": columns["hidden_size"],
        "intermediate": columns["inter_size"],
        "top_k": columns["topk"],
        "tensor_parallel": tensor,
        "expert_parallel": expert,
        "tokens": columns["num_tokens"],
    }
    return _where(columns, keep)


def _delta_net(columns: Columns) -> Columns:
    """The short convolution and the recurrence are two kernels of one operator: their sum."""
    columns = {
        **columns,
        "key_heads": columns["num_k_heads"],
        "value_heads": columns["num_v_heads"],
        "key_dim": columns["head_k_dim"],
        "value_dim": columns["head_v_dim"],
        "batch": columns["batch_size"],
    }
    columns = _where(columns, columns["phase"] == "generation")
    convolution = np.char.startswith(columns["kernel_source"].astype(str), "causal_conv1d")
    names = ("key_heads", "value_heads", "key_dim", "value_dim", "batch")
    parts = [_fastest(_where(columns, part), names) for part in (convolution, ~convolution)]
    both = sorted(parts[0].keys() & parts[1].keys())
    summed: Columns = {name: np.array([key[i] for key in both]) for i, name in enumerate(names)}
    summed["latency"] = np.array([parts[0][key] + parts[1][key] for key in both])
    return summed


def _all_reduce(columns: Columns) -> Columns:
    graph = np.char.endswith(columns["kernel_source"].astype(str), "_graph")
    columns = {**columns, "ranks": columns["num_gpus"], "elements": columns["message_size"]}
    return _where(columns, graph & (columns["allreduce_dtype"] == "bfloat16"))


def _fastest(columns: Columns, names: Sequence[str]) -> dict[tuple[int, ...], float]:
    """The fastest latency of each key: engines choose the fastest kernel they have."""
    best: dict[tuple[int, ...], float] = {}
    keys = zip(*(columns[name].tolist() for name in names), strict=True)
    for key, latency in zip(keys, columns["latency"].tolist(), strict=True):
        best[key] = min(latency, best.get(key, np.inf))
    return best


def _table(kind: str, columns: Columns, origin: str) -> KernelTable:
    """Latencies in milliseconds as a grid of seconds, NaN where there are none."""
    fixed, axes = KERNEL_AXES[kind]
    best = _fastest(columns, (*fixed, *axes))
    keys = np.array(sorted(best), dtype=np.int64)
    shapes, row = np.unique(keys[:, : len(fixed)], axis=0, return_inverse=True)
    position: list[Any] = [row.reshape(-1)]
    points = []
    for axis in range(len(axes)):
        line, index = np.unique(keys[:, len(fixed) + axis], return_inverse=True)
        points.append(line.astype(float))
        position.append(index)
    time_s = np.full((len(shapes), *(len(line) for line in points)), np.nan, dtype=np.float32)
    latency_ms = np.array([best[tuple(key)] for key in keys.tolist()])
    time_s[tuple(position)] = _rounded(latency_ms * 1e-3)
    if len(axes) == 1:
        time_s = _without_spikes(time_s)
    return KernelTable(
        kind=kind,
        shapes=shapes.reshape(len(shapes), len(fixed)),
        points=tuple(points),
        time_s=time_s,
        dtype="bfloat16",
        origin=origin,
    )


def _without_spikes(time_s: np.ndarray) -> np.ndarray:
    """Drops points that cost over twice both neighbours: a disturbed measurement.

    A bigger problem may be cheaper by a kernel switch, but a problem dearer than both a smaller
    and a bigger one is not (one point: 38 us for 512 elements over 8 H100s, between 3.3 and 3.5).
    """
    neighbours = np.maximum(time_s[:, :-2], time_s[:, 2:])
    spike = np.zeros(time_s.shape, dtype=bool)
    spike[:, 1:-1] = time_s[:, 1:-1] > _SPIKE * neighbours
    return np.where(spike, np.float32(np.nan), time_s)


def _rounded(values: np.ndarray) -> np.ndarray:
    """float32 with the mantissa rounded to ``_MANTISSA_BITS`` bits."""
    drop = 23 - _MANTISSA_BITS
    bits = values.astype(np.float32).view(np.uint32)
    bits = (bits + np.uint32(1 << (drop - 1))) & np.uint32(0xFFFFFFFF << drop & 0xFFFFFFFF)
    return bits.view(np.float32)


def default_source_dir() -> Path:
    """The systems folder of an installed ``aiconfigurator-core``.

    Raises:
        ModuleNotFoundError: it is not installed; the message has the command.
    """
    found = importlib.util.find_spec("aiconfigurator_core")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(
            "the measurements come from aiconfigurator-core: "
            "pip install --no-deps aiconfigurator-core==0.12.0"
        )
    return Path(found.submodule_search_locations[0]) / "systems"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: write the profile to OUT."""
    from weavejax.profiles.files import content_hash, save_data

    parser = argparse.ArgumentParser(prog="python -m weavejax.profiles.importer")
    parser.add_argument("out", type=Path, help="the .npz file to write")
    parser.add_argument("--source-dir", type=Path, default=None)
    options = parser.parse_args(arguments)
    data = build(options.source_dir or default_source_dir())
    save_data(data, options.out)
    print(f"{options.out}: {options.out.stat().st_size} bytes, hash {content_hash(data)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
