"""All figures by name, and the report over them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from weavejax.reproduce.balance_figure import fig6
from weavejax.reproduce.beyond import beyond
from weavejax.reproduce.cost_figure import fig9
from weavejax.reproduce.fidelity import fig12
from weavejax.reproduce.figure import Figure
from weavejax.reproduce.heterogeneous import fig13
from weavejax.reproduce.homogeneous_figures import fig10, fig11
from weavejax.reproduce.motivation import fig2
from weavejax.reproduce.network import fig14
from weavejax.reproduce.scope import Bench, Scope
from weavejax.reproduce.search_ablation import table3
from weavejax.reproduce.switches import switches
from weavejax.reproduce.theory_figures import fig4, fig5
from weavejax.workbench.searches import Report, Searches

FIGURES: dict[str, Callable[[Bench], Figure]] = {
    "fig2": fig2,
    "fig4": fig4,
    "fig5": fig5,
    "fig6": fig6,
    "fig9": fig9,
    "fig10": fig10,
    "fig11": fig11,
    "fig12": fig12,
    "fig13": fig13,
    "fig14": fig14,
    "table3": table3,
    "beyond": beyond,
    "switches": switches,
}
"""The paper's figures in order, then what goes beyond it and what explains the differences."""

REPORT = "README.md"


def reproduce(
    names: Sequence[str],
    *,
    scope: Scope | None = None,
    jobs: int | None = None,
    progress: Report | None = None,
) -> Iterator[tuple[Figure, float]]:
    """Each figure asked for, with the seconds it took; searches are shared between them.

    Raises:
        ValueError: a name that is none of :data:`FIGURES`.

    Examples:
        >>> [figure.name for figure, _ in reproduce(["fig6"])]
        ['fig6']
    """
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        raise ValueError(f"figures are {', '.join(FIGURES)}; got {', '.join(unknown)}")
    with Searches(jobs) as searches:
        bench = Bench(scope=scope or Scope(), searches=searches, progress=progress)
        for name in names:
            start = time.perf_counter()
            yield FIGURES[name](bench), time.perf_counter() - start


def write_report(results: Sequence[tuple[Figure, float]], directory: str | Path) -> Path:
    """One page that names every figure, its statement and its time; returns its path."""
    lines = [
        "# The evaluation of OpWeave, reproduced",
        "From the shipped measured profile; ours beside the paper's (arXiv 2609.14237) on each "
        "page.",
    ]
    for figure, seconds in results:
        lines += [
            f"## [{figure.title}]({figure.name}.md)",
            figure.statement,
            f"![{figure.title}]({figure.name}.svg)",
            f"{seconds:.1f} s; data in [{figure.name}.csv]({figure.name}.csv)",
        ]
    path = Path(directory) / REPORT
    path.write_text("\n\n".join(lines) + "\n")
    return path
