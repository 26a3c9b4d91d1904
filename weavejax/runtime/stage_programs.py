"""The programs of one group's stages, compiled at start and found by (stage, shape)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jax.sharding import Mesh

from weavejax.plan import Parallelism
from weavejax.runtime.batches import prefix_buckets
from weavejax.runtime.binding import StageBinding
from weavejax.runtime.cells import Cells
from weavejax.runtime.programs import Programs
from weavejax.runtime.stage import StageShape

Compiled = Callable[..., Any]
Progress = Callable[[str, int, int], None]
"""Called with (what, done, total)."""


class StagePrograms:
    """Looks up compiled programs; :meth:`jobs` compile every shape a pass can have."""

    def __init__(
        self,
        stages: Sequence[StageBinding],
        mesh: Mesh,
        parallelism: Parallelism,
        cells: Cells,
        programs: Programs,
        chunks: Sequence[int],
    ):
        self.stages, self.mesh, self.parallelism = stages, mesh, parallelism
        self.cells, self.programs = cells, programs
        self.chunks = tuple(sorted({min(chunk, programs.context) for chunk in chunks}))
        self._prefixes = {
            True: prefix_buckets(programs.context),
            # Reading a part of all caches copies it: what is most of them is read whole.
            False: prefix_buckets(programs.context, largest=0.75),
        }
        """Of prefill and of decode."""
        self._found: dict[tuple[Any, ...], Compiled] = {}

    def shape(self, tokens: int, prefix: int, *, prefill: bool) -> StageShape:
        """The compiled shape of a pass: the next larger prefix bucket, or the whole context."""
        sizes = self._prefixes[prefill]
        bucket = next((size for size in sizes if size >= prefix), sizes[-1])
        return StageShape(
            rows=self.cells.count if prefill else self.cells.microbatch_rows,
            tokens=tokens,
            prefix=bucket,
            prefill=prefill,
            cells=self.cells.count,
            cell_rows=self.cells.rows,
        )

    def jobs(self) -> list[Callable[[], Any]]:
        """Functions that compile everything a pass may need; any order, any thread."""
        shapes = [self.shape(1, prefix, prefill=False) for prefix in self._prefixes[False]]
        for chunk in self.chunks:
            # the prefix covers the chunk
            prefixes = [prefix for prefix in self._prefixes[True] if prefix >= chunk]
            shapes += [self.shape(chunk, prefix, prefill=True) for prefix in prefixes]
        jobs: list[Callable[[], Any]] = [self.advance]
        for shape in shapes:
            for stage in self.stages:
                jobs.append(lambda stage=stage, shape=shape: self.body(stage, shape))
                if stage.embed is not None:
                    jobs.append(lambda stage=stage, shape=shape: self.embed(stage, shape))
                if stage.embed is not None and shape.prefill:
                    jobs.append(lambda shape=shape: self.merge(shape))
                if stage.head is not None:
                    jobs.append(lambda stage=stage, shape=shape: self.head(stage, shape))
                    jobs.append(lambda shape=shape: self.sample(shape, draws=False))
                    jobs.append(lambda shape=shape: self.sample(shape, draws=True))
        return jobs

    def body(self, stage: StageBinding, shape: StageShape) -> Compiled:
        """Layer operators of a stage."""
        prefix = shape.prefix if stage.reads_context else 0
        return self._find(
            ("body", stage.index, shape.tokens, prefix, shape.prefill),
            lambda: self.programs.body(
                self.mesh,
                self.parallelism,
                stage.operators,
                stage.reads,
                stage.writes,
                _with(shape, prefix=prefix),
            ),
        )

    def embed(self, stage: StageBinding, shape: StageShape) -> Compiled:
        """Token ids to ``x``."""
        op = stage.embed
        assert op is not None
        return self._find(
            ("embed", shape.tokens, shape.prefill),
            lambda: self.programs.embed(self.mesh, self.parallelism, op, _with(shape, prefix=0)),
        )

    def head(self, stage: StageBinding, shape: StageShape) -> Compiled:
        """``x`` to logits."""
        op = stage.head
        assert op is not None
        return self._find(
            ("head", shape.tokens, shape.prefill),
            lambda: self.programs.head(self.mesh, self.parallelism, op, _with(shape, prefix=0)),
        )

    def sample(self, shape: StageShape, *, draws: bool) -> Compiled:
        """Logits to ids: one program for greedy rows, one where any row draws."""
        return self._find(
            ("sample", shape.rows, shape.prefill, draws),
            lambda: self.programs.sample(self.mesh, self.parallelism, shape, draws=draws),
        )

    def merge(self, shape: StageShape) -> Compiled:
        """First tokens of a prefill into a microbatch's ids."""
        return self._find(
            ("merge",),
            lambda: self.programs.merge(
                self.mesh, self.parallelism, _with(shape, prefix=0, tokens=1)
            ),
        )

    def advance(self) -> Compiled:
        """Positions of the group's rows to the next iteration's."""
        return self._find(
            ("advance",), lambda: self.programs.advance(self.mesh, self.cells.microbatch_rows)
        )

    def _find(self, key: tuple[Any, ...], build: Callable[[], Compiled]) -> Compiled:
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = build()
        return found


def compile_all(jobs: Sequence[Callable[[], Any]], progress: Progress) -> None:
    """Run compilations in parallel."""
    pool = ThreadPoolExecutor(max_workers=os.cpu_count() or 1)
    try:
        for done, future in enumerate([pool.submit(job) for job in jobs], start=1):
            future.result()
            progress("compiling stages", done, len(jobs))
    finally:  # after Ctrl-C or an error, do not compile what nobody waits for
        pool.shutdown(cancel_futures=True)


def _with(shape: StageShape, **changes: Any) -> StageShape:
    return dataclasses.replace(shape, **changes)
