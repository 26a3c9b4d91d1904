"""A tidy table: records of equal columns, as CSV, as Markdown and as a picture."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Chart = Literal["bars", "lines", "map"]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Records in the order they were asked for.

    Examples:
        >>> table = Table(records=({"policy": "afd", "usd": 0.5}, {"policy": "cad", "usd": None}))
        >>> print(table.to_markdown())
        | policy | usd |
        |---|---|
        | afd | 0.5 |
        | cad | - |
        >>> table.where(policy="afd").column("usd")
        [0.5]
    """

    records: tuple[dict[str, Any], ...]
    chart: Chart = "bars"
    """How :meth:`plot` draws it."""
    x: str = "context_tokens"
    """Column of the horizontal axis."""
    x_label: str = "mean context (tokens)"

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.records)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns in order of first use."""
        return tuple({name: None for row in self.records for name in row})

    def column(self, name: str) -> list[Any]:
        """One column.

        Raises:
            KeyError: no record has it.
        """
        if self.records and name not in self.columns:
            raise KeyError(f"no column {name!r}; columns are {', '.join(self.columns)}")
        return [row.get(name) for row in self.records]

    def where(self, **equal: Any) -> Table:
        """The records whose columns equal the given values."""
        kept = tuple(row for row in self.records if all(row.get(k) == v for k, v in equal.items()))
        return Table(records=kept, chart=self.chart, x=self.x, x_label=self.x_label)

    def to_csv(self, path: str | Path | None = None) -> str:
        """All columns and digits; also written to ``path`` if given."""
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.records)
        return _write(buffer.getvalue(), path)

    def to_markdown(
        self, path: str | Path | None = None, *, columns: Sequence[str] | None = None
    ) -> str:
        """A Markdown table with four significant digits; also written to ``path`` if given."""
        names = self.columns if columns is None else tuple(columns)
        lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
        for row in self.records:
            lines.append("| " + " | ".join(cell(row.get(name)) for name in names) + " |")
        return _write("\n".join(lines), path)

    def plot(self, path: str | Path) -> None:
        """Draw the table into a file; its ending (.svg, .png, .pdf) chooses the form.

        Raises:
            ImportError: matplotlib is not installed; the message says how to get it.
            ValueError: the table has no record.
        """
        from weavejax.workbench import plots

        if not self.records:
            raise ValueError("a plot needs at least one record, got an empty table")
        draw = {"bars": plots.cost_bars, "lines": plots.cost_lines, "map": plots.gain_map}
        plots.save(draw[self.chart](self), path)


def cell(value: Any) -> str:
    """A value as a reader wants it: four significant digits, ``-`` for what is not there.

    Examples:
        >>> cell(0.123456), cell(131072), cell(None), cell(12345.6), cell(1e-7)
        ('0.1235', '131,072', '-', '12,346', '1e-07')
    """
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
    return str(value).replace("|", "/").replace("\n", " ")


def _write(text: str, path: str | Path | None) -> str:
    if path is not None:
        Path(path).write_text(text if text.endswith("\n") else text + "\n")
    return text
