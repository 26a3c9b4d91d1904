"""What has come to a worker and is not used yet."""

from __future__ import annotations

from collections import deque
from queue import SimpleQueue
from typing import Any

import numpy as np

from weavejax.workers.frames import Header

RowsKey = tuple[int, int, int, str]
"""(pass, boundary, microbatch, peer)"""


class StopReplicaError(Exception):
    """The coordinator asked the worker to end."""


class Inbox:
    """Everything that comes to a worker, in one queue; what is not wanted yet is kept."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
        self._commands: deque[tuple[Header, list[np.ndarray]]] = deque()
        self._rows: dict[RowsKey, list[np.ndarray]] = {}

    def put_command(self, header: Header, arrays: list[np.ndarray]) -> None:
        self._queue.put((None, (header, arrays)))

    def put_rows(self, peer: str, header: Header, arrays: list[np.ndarray]) -> None:
        self._queue.put(((header["pass"], header["boundary"], header["microbatch"], peer), arrays))

    def next_command(self) -> tuple[Header, list[np.ndarray]]:
        while not self._commands:
            self._take()
        return self._commands.popleft()

    def has_rows(self, key: RowsKey) -> bool:
        """Whether rows are here already; looks at what has arrived."""
        while not self._queue.empty():
            self._take()
        return key in self._rows

    def rows(self, key: RowsKey) -> list[np.ndarray]:
        """Wait for the rows of a boundary."""
        while key not in self._rows:
            self._take()
        return self._rows.pop(key)

    def _take(self) -> None:
        key, item = self._queue.get()
        if key is None:
            if item[0].get("do") == "stop":
                raise StopReplicaError
            self._commands.append(item)
        else:
            self._rows[key] = item
