"""The figures of merit of figures 9 to 11, of one set of outcomes and of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weavejax.reproduce.homogeneous import (
    Outcomes,
    batch_ratio,
    cheapest_in,
    gains,
    infeasible_baselines,
    mean_of,
)
from weavejax.reproduce.scope import GEMMA, paper
from weavejax.reproduce.words import finite_max, finite_min

STAGES = {"stages": "stages", "stages, blocks as fractions": "fractional_stages"}
MIB = {
    "MiB/token": "payload_mib_per_token",
    "MiB/token, a copy a device": "copied_mib_per_token",
}
"""What is counted in two ways: the second one's name is the first one's and the way."""


def merits(outcomes: Outcomes, models: tuple[str, ...]) -> dict[str, object]:
    """The numbers of figures 9 to 11, one column each."""
    row: dict[str, object] = {
        "weave cheapest in": cheapest_in(outcomes),
        "no-plan baselines": infeasible_baselines(outcomes),
    }
    for model in models:
        short = "gemma" if model == GEMMA else "qwen"
        found = gains(outcomes, model).values()
        row[f"{short} least gain"] = finite_min(found)
        row[f"{short} largest gain"] = finite_max(found)
        for column, what in STAGES.items():
            row[f"{short} weave {column}"] = mean_of(outcomes, model, "weave", what)
        for policy in ("afd", "cad", "weave"):
            row[f"{short} {policy} occupancy"] = mean_of(outcomes, model, policy, "occupancy")
        for policy in ("afd", "cad", "weave"):
            for column, what in MIB.items():
                row[f"{short} {policy} {column}"] = mean_of(outcomes, model, policy, what)
        for policy in ("colocated", "afd", "cad"):
            row[f"{short} {policy} batch ratio"] = batch_ratio(outcomes, model, policy)
    return row


def countings(rows: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    """The rows, and after each the row counted in the second way, with what it changes alone.

    Examples:
        >>> row = {"switch": "TP 1", "MiB/token": 1, "MiB/token, a copy a device": 2}
        >>> countings([row], "switch")[-1]
        {'switch': 'TP 1, a copy a device', 'MiB/token': 2}
    """
    found: list[Mapping[str, Any]] = []
    for row in rows:
        found.append(row)
        for first, second in (tuple(STAGES), tuple(MIB)):
            way = second.removeprefix(first)
            changed = {c.removesuffix(way): v for c, v in row.items() if c.endswith(second)}
            found.append({name: row[name] + way, **changed})
    return found


def paper_merits(models: tuple[str, ...]) -> dict[str, object]:
    """The same columns, from the paper."""
    told = paper()
    fig9, fig10, fig11 = told["fig9"], told["fig10"], told["fig11"]
    row: dict[str, object] = {
        "weave cheapest in": fig9["cheapest_in"],
        "no-plan baselines": fig9["infeasible_baseline_configurations"],
    }
    for model in models:
        short = "gemma" if model == GEMMA else "qwen"
        row[f"{short} least gain"] = None
        row[f"{short} largest gain"] = fig9["max_gain"][model]
        for column in STAGES:
            row[f"{short} weave {column}"] = fig10["mean_stages"][model]["weave"]
        for policy in ("afd", "cad", "weave"):
            row[f"{short} {policy} occupancy"] = fig10["occupancy"][model][policy]
        for policy in ("afd", "cad", "weave"):
            for column in MIB:
                row[f"{short} {policy} {column}"] = fig10["internode_mib_per_token"][model][policy]
        for policy in ("colocated", "afd", "cad"):
            row[f"{short} {policy} batch ratio"] = fig11[model][policy]
    return row
