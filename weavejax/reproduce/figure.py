"""A reproduced figure: its data, ours beside the paper's, one sentence, and files of all three."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from weavejax.workbench import plots
from weavejax.workbench.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

FORMS = ("csv", "md", "svg", "png")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure or table of the evaluation."""

    name: str
    """``fig9``, ``table3``, ``switches``..."""
    title: str
    data: Table
    """Every number, one record a row: the CSV."""
    sections: tuple[tuple[str, Table], ...]
    """(heading, table) of the Markdown page."""
    statement: str
    """What agrees with the paper, what does not, and why."""
    draw: Callable[[], Drawing]

    def to_markdown(self) -> str:
        """The page: statement, picture, tables."""
        parts = [f"# {self.title}", self.statement, f"![{self.title}]({self.name}.svg)"]
        for heading, table in self.sections:
            parts += [f"## {heading}", table.to_markdown()]
        return "\n\n".join(parts) + "\n"

    def write(self, directory: str | Path) -> tuple[Path, ...]:
        """Write CSV, Markdown, SVG and PNG; returns their paths."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        paths = tuple(folder / f"{self.name}.{form}" for form in FORMS)
        self.data.to_csv(paths[0])
        paths[1].write_text(self.to_markdown())
        drawn = self.draw()
        for path in paths[2:]:
            plots.save(drawn, path)
        return paths
