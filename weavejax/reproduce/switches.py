"""Assumptions that may explain a disagreement, each flipped on the settings of figure 9."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weavejax.meshes.cluster import Cluster
from weavejax.reproduce.figure import Figure
from weavejax.reproduce.homogeneous import (
    CLUSTER,
    Key,
    Outcomes,
    batch_ratio,
    cases,
    cheapest_in,
    gains,
    infeasible_baselines,
    mean_of,
)
from weavejax.reproduce.scope import GEMMA, Bench, paper
from weavejax.reproduce.words import finite_max, finite_min
from weavejax.workbench import plots
from weavejax.workbench.cases import Case
from weavejax.workbench.table import Table
from weavejax.workbench.variant import ProfileVariant

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

WIDE_REPLICAS, WIDE_DEVICES = 8, 64
TOGETHER = "colocated TP<=2, 20 us a stage; groups apart, 100 us, bandwidth/8"


MIB_COLUMNS = {
    "MiB/token": "payload_mib_per_token",
    "MiB/token, a copy a device": "copied_mib_per_token",
}
"""How the bytes between groups are counted."""


@dataclass(frozen=True, kw_only=True)
class Switch:
    """One assumption, flipped."""

    name: str
    change: Callable[[Case], Case]


def limited(case: Case, **limits: object) -> Case:
    """The case with other search limits."""
    return dataclasses.replace(case, limits=dataclasses.replace(case.limits, **limits))  # type: ignore[arg-type]


def colocated_only(change: Callable[[Case], Case]) -> Callable[[Case], Case]:
    """The change for the colocated baseline alone."""
    return lambda case: change(case) if case.policy == "colocated" else case


def wide(case: Case) -> Case:
    """Twice the replicas on twice the devices."""
    cluster = Cluster(devices=tuple((spec, count * 2) for spec, count in case.cluster.devices))
    changed = limited(case, max_replicas=WIDE_REPLICAS, max_devices=WIDE_DEVICES)
    return dataclasses.replace(changed, cluster=cluster)


def stage_cost(seconds: float) -> Callable[[Case], Case]:
    """A fixed cost for every stage execution, colocated ones included."""
    return lambda case: dataclasses.replace(case, profile=ProfileVariant(stage_overhead_s=seconds))


def network(latency_s: float | None = None, share: float = 1.0) -> Callable[[Case], Case]:
    """Another latency between nodes, or a share of the bandwidth."""

    def change(case: Case) -> Case:
        (spec, _), *_ = case.cluster.devices
        bandwidth = spec.inter_node.bandwidth_bytes_per_s * share
        return dataclasses.replace(
            case,
            cluster=case.cluster.with_network(bandwidth_bytes_per_s=bandwidth, latency_s=latency_s),
        )

    return change


def apart(case: Case) -> Case:
    """Groups never share a node: every move between them takes the network between nodes."""
    return dataclasses.replace(
        case,
        cluster=Cluster(
            devices=tuple(
                (dataclasses.replace(spec, intra_node=spec.inter_node), count)
                for spec, count in case.cluster.devices
            )
        ),
    )


def whole_cache(case: Case) -> Case:
    """Sliding layers keep the whole context in memory, as an engine without a mixed cache does.

    Their attention still reads one window, so only the memory changes.
    """
    window = case.config.sliding_window
    if window is None or window >= case.context:
        return case
    return dataclasses.replace(
        case,
        config=dataclasses.replace(case.config, sliding_window=case.context),
        profile=ProfileVariant(timed_window=window),
    )


def one_device(case: Case) -> Case:
    """A colocated engine of one device a replica."""
    return limited(case, tensor_parallel=(1,)) if case.policy == "colocated" else case


def unpipelined(case: Case) -> Case:
    """AFD and CAD hand one batch to and fro, and each group waits for the other.

    The paper's occupancy of both, 47 to 54 %, is that of two groups that take turns.
    """
    return limited(case, max_microbatches=1) if case.policy in ("afd", "cad") else case


def paper_like(case: Case) -> Case:
    """The changes that favour the paper's numbers, together."""
    if case.policy == "colocated":
        return stage_cost(20e-6)(limited(case, tensor_parallel=(1, 2)))
    return stage_cost(20e-6)(apart(network(100e-6, 1 / 8)(case)))


SWITCHES = (
    Switch(name="as described", change=lambda case: case),
    Switch(
        name="colocated TP<=2",
        change=colocated_only(lambda case: limited(case, tensor_parallel=(1, 2))),
    ),
    Switch(name="colocated without a mixed cache", change=colocated_only(whole_cache)),
    Switch(
        name="colocated TP<=2 without a mixed cache",
        change=colocated_only(lambda case: limited(whole_cache(case), tensor_parallel=(1, 2))),
    ),
    Switch(
        name="AFD and CAD without a mixed cache",
        change=lambda case: whole_cache(case) if case.policy in ("afd", "cad") else case,
    ),
    Switch(name="colocated TP 1", change=one_device),
    Switch(name="AFD and CAD in one microbatch", change=unpipelined),
    Switch(
        name="colocated TP<=2; AFD and CAD in one microbatch",
        change=lambda case: unpipelined(
            limited(case, tensor_parallel=(1, 2)) if case.policy == "colocated" else case
        ),
    ),
    Switch(
        name="colocated TP 1; AFD and CAD in one microbatch",
        change=lambda case: unpipelined(one_device(case)),
    ),
    Switch(
        name="data-parallel attention",
        change=lambda case: limited(case, attention_data_parallel=True),
    ),
    Switch(name="offsets", change=lambda case: limited(case, offsets=True)),
    Switch(name=f"<={WIDE_REPLICAS} replicas, {WIDE_DEVICES} devices", change=wide),
    Switch(name="20 us a stage", change=stage_cost(20e-6)),
    Switch(name="groups never share a node", change=apart),
    Switch(name="network 5 us", change=network(5e-6)),
    Switch(name="network 100 us", change=network(100e-6)),
    Switch(name="one link a replica (bandwidth/8)", change=network(share=1 / 8)),
    Switch(name=TOGETHER, change=paper_like),
)


def flipped(bench: Bench, switch: Switch) -> dict[Key, object]:
    """Outcomes of every setting under one switch; unchanged cases are not searched again."""
    changed = {key: switch.change(case) for key, case in cases(bench.scope).items()}
    return bench.run(changed, f"switch: {switch.name}")


def merits(outcomes: Outcomes, models: tuple[str, ...]) -> dict[str, object]:
    """The numbers of figures 9 to 11, one column each."""
    row: dict[str, object] = {
        "weave cheapest in": f"{cheapest_in(outcomes)} of {len(gains(outcomes))}",
        "no-plan baselines": infeasible_baselines(outcomes),
    }
    for model in models:
        short = "gemma" if model == GEMMA else "qwen"
        found = gains(outcomes, model).values()
        row[f"{short} least gain"] = finite_min(found)
        row[f"{short} largest gain"] = finite_max(found)
        row[f"{short} weave stages"] = mean_of(outcomes, model, "weave", "stages")
        for policy in ("afd", "cad", "weave"):
            row[f"{short} {policy} occupancy"] = mean_of(outcomes, model, policy, "occupancy")
        for policy in ("afd", "weave"):
            for column, what in MIB_COLUMNS.items():
                row[f"{short} {policy} {column}"] = mean_of(outcomes, model, policy, what)
        for policy in ("colocated", "afd", "cad"):
            row[f"{short} {policy} batch ratio"] = batch_ratio(outcomes, model, policy)
    return row


def paper_merits(models: tuple[str, ...]) -> dict[str, object]:
    """The same columns, from the paper."""
    told = paper()
    fig9, fig10, fig11 = told["fig9"], told["fig10"], told["fig11"]
    row: dict[str, object] = {
        "weave cheapest in": f"{fig9['cheapest_in']} of {fig9['settings']}",
        "no-plan baselines": fig9["infeasible_baseline_configurations"],
    }
    for model in models:
        short = "gemma" if model == GEMMA else "qwen"
        row[f"{short} least gain"] = None
        row[f"{short} largest gain"] = fig9["max_gain"][model]
        row[f"{short} weave stages"] = fig10["mean_stages"][model]["weave"]
        for policy in ("afd", "cad", "weave"):
            row[f"{short} {policy} occupancy"] = fig10["occupancy"][model][policy]
        for policy in ("afd", "weave"):
            for column in MIB_COLUMNS:
                row[f"{short} {policy} {column}"] = fig10["internode_mib_per_token"][model][policy]
        for policy in ("colocated", "afd", "cad"):
            row[f"{short} {policy} batch ratio"] = fig11[model][policy]
    return row


def switches(bench: Bench) -> Figure:
    """Every figure of merit of figures 9 to 11 under every switch."""
    models = bench.scope.models
    rows = [{"switch": "paper"} | paper_merits(models)]
    largest: dict[str, list[float | None]] = {model: [] for model in models}
    for switch in SWITCHES:
        outcomes = flipped(bench, switch)
        rows.append({"switch": switch.name} | merits(outcomes, models))  # type: ignore[arg-type]
        for model in models:
            largest[model].append(finite_max(gains(outcomes, model).values()))  # type: ignore[arg-type]
    table = Table(records=tuple(rows))
    described, together = rows[1], rows[-1]
    return Figure(
        name="switches",
        title="Switches: what each assumption does to figures 9 to 11",
        data=table,
        sections=_sections(table, models),
        statement=(
            f"As described, weave is cheapest in {described['weave cheapest in']}; with the last "
            f"switch ({TOGETHER}) in {together['weave cheapest in']} (paper: "
            f"{rows[0]['weave cheapest in']}). The "
            "switches are assumptions, not fits: each value is round and none was searched for. A "
            "mixed cache keeps one window of a sliding layer instead of the whole context. "
            f"All settings on {CLUSTER}."
        ),
        draw=lambda: _draw(largest),
    )


def _sections(table: Table, models: tuple[str, ...]) -> tuple[tuple[str, Table], ...]:
    def pick(*names: str) -> Table:
        columns = ("switch", *(n for n in table.columns if any(n.endswith(e) for e in names)))
        return Table(records=tuple({c: row.get(c) for c in columns} for row in table))

    return (
        (
            "Gains (figure 9): best feasible baseline / weave",
            pick("cheapest in", "plan baselines", "gain"),
        ),
        ("Stages and occupancy (figure 10)", pick("stages", "occupancy")),
        (
            "MiB between groups per token (figure 10; the paper counts between nodes)",
            pick(*MIB_COLUMNS),
        ),
        ("Rows per device over weave's (figure 11)", pick("batch ratio")),
    )


def _draw(largest: dict[str, list[float | None]]) -> Drawing:
    drawn = plots.figure(width=7.5, height=0.4 * len(SWITCHES))
    axes = drawn.axes[0]
    height = 0.8 / len(largest)
    for index, (model, values) in enumerate(largest.items()):
        places = [i - 0.4 + height * (index + 0.5) for i in range(len(SWITCHES))]
        shade = plots.COLOURS[3 + 3 * index]
        axes.barh(places, [v or 0 for v in values], height * 0.9, label=model, color=shade)
        axes.axvline(paper()["fig9"]["max_gain"][model], color=shade, ls=":", lw=1.2)
    axes.axvline(1, color="black", lw=0.8)
    axes.set_yticks(range(len(SWITCHES)), [switch.name.replace("; ", ";\n") for switch in SWITCHES])
    axes.invert_yaxis()
    axes.set_xlabel("largest gain over the best feasible baseline (dotted: paper)")
    axes.spines[["top", "right"]].set_visible(False)
    plots.legend(drawn, axes)
    return drawn
