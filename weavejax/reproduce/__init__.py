"""The evaluation of OpWeave (arXiv 2609.14237), reproduced from the shipped measured profile."""

from weavejax.reproduce.run import FIGURES, reproduce, write_report
from weavejax.reproduce.scope import Bench, Scope

__all__ = ["FIGURES", "Bench", "Scope", "reproduce", "write_report"]
