"""Options of the grid that a command searches."""

from __future__ import annotations

import argparse
import dataclasses

from weavejax.planner import SearchLimits

COUNTS = ("max_devices", "max_groups", "max_replicas", "max_microbatches", "max_batch")


def add_limits(parser: argparse.ArgumentParser, *, of_plan: bool = False) -> None:
    """Options that become :class:`SearchLimits`.

    Args:
        of_plan: options left out are as the plan's search had them.
    """
    default = SearchLimits()
    group = parser.add_argument_group(
        "limits of the search", "by default those the plan was found under" if of_plan else None
    )

    def text(value: object) -> str | None:
        return None if of_plan else f"default: {value}"

    for name in COUNTS:
        option = f"--{name.replace('_', '-')}"
        group.add_argument(option, type=int, metavar="N", help=text(getattr(default, name)))
    group.add_argument(
        "--tensor-parallel",
        type=int,
        nargs="+",
        metavar="N",
        help=text(" ".join(map(str, default.tensor_parallel))),
    )
    group.add_argument(
        "--offsets",
        action=argparse.BooleanOptionalAction,
        help="whether templates may start off a layer boundary",
    )


def read_limits(options: argparse.Namespace, base: SearchLimits | None = None) -> SearchLimits:
    """The limits that the options describe; those of ``base`` where an option is left out."""
    given = {
        name: getattr(options, name)
        for name in (*COUNTS, "tensor_parallel", "offsets")
        if getattr(options, name) is not None
    }
    if "max_batch" in given:
        given["batches"] = ()  # filled from max_batch again
    return dataclasses.replace(base or SearchLimits(), **given)
