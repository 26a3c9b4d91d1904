"""Results on their way from the last group's workers: arrays that wait when they are read."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np


class PassResult:
    """Sampled ids and log-probabilities of one microbatch, in parts from every replica."""

    def __init__(self, replicas: int):
        self._parts: list[list[np.ndarray] | None] = [None] * replicas
        self._missing = replicas
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._rows: list[np.ndarray] | None = None

    def put(self, replica: int, arrays: list[np.ndarray]) -> bool:
        """Take one replica's rows; true when all are here."""
        assert self._parts[replica] is None, "a replica gives its rows once"
        self._parts[replica] = arrays
        self._missing -= 1
        if self._missing:
            return False
        parts = [part for part in self._parts if part is not None]
        self._rows = [np.concatenate(rows) for rows in zip(*parts, strict=True)]
        self._ended.set()
        return True

    def fail(self, failure: BaseException) -> None:
        """Let whoever waits go on, with the failure."""
        if not self._ended.is_set():
            self._failure = failure
            self._ended.set()

    def wait(self) -> list[np.ndarray]:
        """The rows of all replicas.

        Raises:
            WorkerError: they will not come.
        """
        self._ended.wait()
        if self._failure is not None:
            raise self._failure
        assert self._rows is not None
        return self._rows


class RemoteRows:
    """One array of a result; reading it waits, as reading a device array does."""

    def __init__(self, result: PassResult, index: int):
        self._result, self._index = result, index

    def copy_to_host_async(self) -> None:
        """It is on its way already."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        rows = self._result.wait()[self._index]
        return rows if dtype is None else rows.astype(dtype)
