"""Entry point: one module per command, each with ``add_parser`` and ``run``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from weavejax.cli import (
    accuracy,
    bench,
    check,
    cluster_check,
    compare,
    convert,
    demo,
    explain,
    generate,
    plan,
    profile,
    reproduce,
    selftest,
    serve_cluster,
    simulate,
    sweep,
    validate,
    whatif,
)
from weavejax.cli.common import UsageError

COMMANDS = (
    generate,
    serve_cluster,
    demo,
    plan,
    explain,
    compare,
    sweep,
    whatif,
    simulate,
    profile,
    validate,
    accuracy,
    check,
    bench,
    selftest,
    cluster_check,
    convert,
    reproduce,
)


def build_parser() -> argparse.ArgumentParser:
    """The parser of every command."""
    parser = argparse.ArgumentParser(
        prog="weavejax",
        description="Operator-level disaggregated serving of language models in JAX.",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for module in COMMANDS:
        command = module.add_parser(commands)
        command.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns 0, 1 when the work failed, or 2 when the request was wrong."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 2
    try:
        return options.run(options)
    except UsageError as error:
        print(f"weavejax {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has left
        sys.stderr.close()
        return 141
