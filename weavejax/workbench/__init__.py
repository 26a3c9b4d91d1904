"""Comparisons, sweeps and what-if questions over many searches."""

from weavejax.workbench.compare import compare
from weavejax.workbench.sweep import sweep
from weavejax.workbench.table import Table

__all__ = ["Table", "compare", "sweep"]
