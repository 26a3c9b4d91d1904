"""Profiles on disk, and the hash of their content.

Large ones are an ``.npz`` with a JSON header and the arrays; a profile of one machine is small and
is plain JSON, which people can read and compare: the file's suffix decides.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weavejax.profiles.operator_times import OperatorTimes
from weavejax.profiles.schema import (
    DeviceProfile,
    Efficiency,
    KernelTable,
    LinkFit,
    ProfileData,
    Warp,
)

PROFILE_FORMAT = "weavejax.profile/1"
_PARTS = ("tables", "efficiencies", "warps", "links", "attributes", "operators")
"""Fields of a device that are written part by part."""


class ProfileError(ValueError):
    """A profile file that cannot be read; the message names the file and the rule."""


def content(data: ProfileData) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header (plain JSON values, keys in a fixed order) and the arrays it refers to."""
    arrays: dict[str, np.ndarray] = {}
    devices = {}
    for name in sorted(data.devices):
        device = data.devices[name]
        entry = {
            item.name: getattr(device, item.name)
            for item in dataclasses.fields(device)
            if item.name not in _PARTS
        }
        if not device.stage_overhead_s:  # files from before it keep their hash
            del entry["stage_overhead_s"]
        entry["attributes"] = dict(sorted(device.attributes.items()))
        for part in ("efficiencies", "warps", "links"):
            values = getattr(device, part)
            entry[part] = {kind: dataclasses.asdict(values[kind]) for kind in sorted(values)}
        for link in entry["links"].values():
            if not link["busy_s"]:  # the same
                del link["busy_s"]
        entry["tables"] = {
            kind: _table_entry(f"{name}/{kind}", device.tables[kind], arrays)
            for kind in sorted(device.tables)
        }
        if device.operators:
            entry["operators"] = {
                key: _operator_entry(f"{name}/{key}", device.operators[key], arrays)
                for key in sorted(device.operators)
            }
        devices[name] = entry
    header = {
        "format": PROFILE_FORMAT,
        "name": data.name,
        "attribution": data.attribution,
        "devices": devices,
    }
    return header, arrays


def content_hash(data: ProfileData) -> str:
    """sha256 of the canonical content: independent of compression, file name and key order."""
    header, arrays = content(data)
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for key in sorted(arrays):
        digest.update(f"{key}{arrays[key].dtype.str}{arrays[key].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[key]).tobytes())
    return digest.hexdigest()


def save_data(data: ProfileData, path: str | Path) -> None:
    """Writes one file: ``.json``, or else an ``.npz`` with ``header`` (JSON) and the arrays."""
    header, arrays = content(data)
    if Path(path).suffix == ".json":
        plain = {key: _plain(array) for key, array in sorted(arrays.items())}
        Path(path).write_text(json.dumps(header | {"arrays": plain}, indent=1) + "\n")
        return
    text = np.frombuffer(json.dumps(header, sort_keys=True).encode(), dtype=np.uint8)
    with Path(path).open("wb") as file:
        np.savez_compressed(file, header=text, **arrays)  # pyright: ignore[reportArgumentType]


def load_data(path: str | Path) -> ProfileData:
    """Reads what :func:`save_data` wrote.

    Raises:
        ProfileError: no such file, not an npz, another format, or content that breaks a rule of
            the schema.
    """
    try:
        arrays = _read_arrays(Path(path))
    except FileNotFoundError:
        raise ProfileError(f"profile file {str(path)!r} does not exist") from None
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise ProfileError(f"profile file {str(path)!r} is not an .npz archive: {error}") from None
    try:
        header = json.loads(bytes(arrays.pop("header")))
        if header["format"] != PROFILE_FORMAT:
            raise ProfileError(
                f'{path}: a profile has "format": {PROFILE_FORMAT!r}, got {header["format"]!r}'
            )
        return ProfileData(
            name=header["name"],
            attribution=header["attribution"],
            devices={n: _read_device(n, e, arrays) for n, e in header["devices"].items()},
        )
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ProfileError(f"{path}: not a {PROFILE_FORMAT} file: {error!r}") from None


def _table_entry(prefix: str, table: KernelTable, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    arrays[f"{prefix}/shapes"] = table.shapes.astype(np.int32)
    for axis, line in enumerate(table.points):
        arrays[f"{prefix}/points{axis}"] = line.astype(np.float64)
    arrays[f"{prefix}/time_s"] = table.time_s.astype(np.float32)
    if table.spread is not None:
        arrays[f"{prefix}/spread"] = table.spread.astype(np.float32)
    return {"dtype": table.dtype, "origin": table.origin, "axes": len(table.points)}


def _read_device(
    name: str, entry: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> DeviceProfile:
    entry = dict(entry)
    tables = {}
    for kind, facts in entry.pop("tables").items():
        prefix = f"{name}/{kind}"
        tables[kind] = KernelTable(
            kind=kind,
            shapes=arrays[f"{prefix}/shapes"],
            points=tuple(arrays[f"{prefix}/points{axis}"] for axis in range(facts["axes"])),
            time_s=arrays[f"{prefix}/time_s"],
            dtype=facts["dtype"],
            origin=facts["origin"],
            spread=arrays.get(f"{prefix}/spread"),
        )
    warps = {kind: _read_warp(values) for kind, values in entry.pop("warps").items()}
    operators = {
        key: _read_operator(f"{name}/{key}", facts, arrays)
        for key, facts in entry.pop("operators", {}).items()
    }
    return DeviceProfile(
        operators=operators,
        tables=tables,
        warps=warps,
        efficiencies={k: Efficiency(**v) for k, v in entry.pop("efficiencies").items()},
        links={k: LinkFit(**v) for k, v in entry.pop("links").items()},
        **entry,
    )


def _operator_entry(
    prefix: str, times: OperatorTimes, arrays: dict[str, np.ndarray]
) -> dict[str, Any]:
    for field in ("rows", "contexts", "time_s", "spread"):
        # as a reader of the file sees them, so that a hash survives writing and reading
        arrays[f"{prefix}/{field}"] = np.asarray(getattr(times, field)).astype(np.float32)
    return {"name": times.name}


def _read_operator(
    prefix: str, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> OperatorTimes:
    parts = {
        field: arrays[f"{prefix}/{field}"].astype(np.float64)
        for field in ("rows", "contexts", "time_s", "spread")
    }
    return OperatorTimes(name=facts["name"], **parts)


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file; its header is one of them, as JSON text in bytes."""
    if path.suffix != ".json":
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    header = json.loads(path.read_text("utf-8"))
    arrays = {key: _array(value) for key, value in header.pop("arrays").items()}
    text = np.frombuffer(json.dumps(header, sort_keys=True).encode(), dtype=np.uint8)
    return arrays | {"header": text}


def _plain(array: np.ndarray) -> dict[str, Any]:
    """An array as JSON, in as many digits as its type holds; NaN is null."""
    digits = 9 if array.dtype == np.float32 else 17
    values = [float(f"{x:.{digits}g}") if np.isfinite(x) else None for x in array.ravel().tolist()]
    return {"dtype": array.dtype.str, "shape": list(array.shape), "values": values}


def _array(entry: Mapping[str, Any]) -> np.ndarray:
    values = [np.nan if value is None else value for value in entry["values"]]
    return np.array(values, dtype=entry["dtype"]).reshape(entry["shape"])


def _read_warp(values: Mapping[str, Any]) -> Warp:
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
    }
    return Warp(**fields)
