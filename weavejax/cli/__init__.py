"""The ``weavejax`` command."""

from weavejax.cli.main import main

__all__ = ["main"]
