"""Progress of a search: a bar on a terminal, or a callable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from weavejax.planner.branch_and_bound import Progress

ProgressLike = bool | Progress


@contextmanager
def tracked(progress: ProgressLike) -> Iterator[Progress | None]:
    """What a search reports to: nothing, the given callable, or a bar that shows the best cost."""
    if progress is False:
        yield None
    elif progress is not True:
        yield progress
    else:
        with _bar() as update:
            yield update


@contextmanager
def _bar() -> Iterator[Callable[[int, int, float | None], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("searching", total=None)

        def update(done: int, total: int, usd_per_token: float | None) -> None:
            best = "none yet" if usd_per_token is None else f"${usd_per_token * 1e6:.4f}/M tokens"
            bar.update(task, completed=done, total=total, description=f"best {best}")

        yield update
