"""Figure 2: why decode is cut at all. Utilisation of two operators, and batches that fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weavejax.meshes import device_spec
from weavejax.models.costs import operator_flops
from weavejax.models.presets import preset_config
from weavejax.models.sequence import operator_sequence
from weavejax.plan import DeviceGroup
from weavejax.planner.memory import replica_memory
from weavejax.profiles import load_profile
from weavejax.reproduce.figure import Figure
from weavejax.reproduce.scope import GEMMA, Bench
from weavejax.workbench import plots
from weavejax.workbench.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

UTILISATION_DEVICE, CAPACITY_DEVICE = "b200-sxm", "h100-sxm"
UTILISATION_CONTEXT = 8192
BATCHES = tuple(2**k for k in range(11))
CONTEXTS = tuple(2**k for k in range(11, 18))
WAYS = (1, 2, 4, 8)


def fig2(bench: Bench) -> Figure:
    """Both panels, from the shipped profile and the planner's memory model."""
    used, fits = _utilisation(), _capacities()
    rows = [{"panel": "a", **row} for row in used] + [{"panel": "b", **row} for row in fits]
    top = {name: max(row[f"{name} utilisation"] for row in used) for name in ("attention", "ffn")}
    first, last = fits.records[0], fits.records[-1]
    return Figure(
        name="fig2",
        title="Figure 2: decode bottlenecks of Gemma-3-27B",
        data=Table(records=tuple(rows)),
        sections=(
            (f"Part of {UTILISATION_DEVICE}'s peak FLOP/s, context {UTILISATION_CONTEXT}", used),
            (f"Largest batch of one {CAPACITY_DEVICE} replica, by tensor parallelism", fits),
        ),
        statement=(
            f"Agrees with the paper's point (its text gives no numbers): up to batch {BATCHES[-1]} "
            f"full attention stays at {top['attention']:.1%} of the peak while the feed-forward "
            f"reaches {top['ffn']:.0%}; on {CAPACITY_DEVICE} at TP 2 the batch falls from "
            f"{first['TP 2']:,} at {plots.tokens(first['context'])} to {last['TP 2']:,} at "
            f"{plots.tokens(last['context'])}. Times are derived from measured kernels where "
            "B200 has no table of the very shape."
        ),
        draw=lambda: _draw(used, fits),
    )


def _utilisation() -> Table:
    profile, peak = load_profile(), device_spec(UTILISATION_DEVICE).bf16_flop_per_s
    operators = operator_sequence(preset_config(GEMMA))
    full = next(
        o
        for o in operators
        if o.kind == "attn_core" and o.layer_kind and o.layer_kind.attention == "full"
    )
    ffn = next(o for o in operators if o.kind == "ffn")
    group = DeviceGroup(device=UTILISATION_DEVICE, resident_batch=1)
    rows = []
    for batch in BATCHES:
        row: dict[str, object] = {"batch": batch}
        for name, operator in (("attention", full), ("ffn", ffn)):
            answer = profile.operator_time_s(operator, group, batch, UTILISATION_CONTEXT)
            flops = operator_flops(operator, batch, UTILISATION_CONTEXT)
            row[f"{name} utilisation"] = flops / answer.time_s / peak
            row[f"{name} source"] = answer.source
        rows.append(row)
    return Table(records=tuple(rows))


def _capacities() -> Table:
    return Table(
        records=tuple(
            {"context": context, **{f"TP {ways}": _largest_batch(context, ways) for ways in WAYS}}
            for context in CONTEXTS
        )
    )


def _largest_batch(context: int, ways: int) -> int:
    """Most rows one colocated replica holds: memory grows with rows, so halve the interval."""
    config, spec = preset_config(GEMMA), device_spec(CAPACITY_DEVICE)
    operators = operator_sequence(config)

    def fits(rows: int) -> bool:
        group = DeviceGroup(device=spec.name, tensor_parallel=ways, resident_batch=rows)
        memory = replica_memory(
            operators,
            group,
            microbatches=1,
            context=context,
            kv_heads=config.num_kv_heads,
            interface_bytes_per_row=0,
            device_memory_bytes=spec.memory_bytes,
        )
        return memory.short_bytes <= 0

    low, high = 0, 65536
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _draw(used: Table, fits: Table) -> Drawing:
    drawn = plots.figure(1, 2, width=4.6)
    left, right = drawn.axes
    plots.lines(
        left,
        used.column("batch"),
        {
            name: [100 * value for value in used.column(f"{name} utilisation")]
            for name in ("attention", "ffn")
        },
        x_label="rows of the batch",
        y_label="part of the peak FLOP/s (%)",
        title=f"gemma-3-27b on {UTILISATION_DEVICE}, 8K context",
        log_x=True,
    )
    left.legend(frameon=False)
    plots.lines(
        right,
        fits.column("context"),
        {f"TP {ways}": fits.column(f"TP {ways}") for ways in WAYS},
        x_label="context (tokens)",
        y_label="largest batch (rows)",
        title=f"gemma-3-27b on {CAPACITY_DEVICE}",
        log_x=True,
    )
    right.set_yscale("log")
    plots.token_axis(right, CONTEXTS)
    right.legend(frameon=False)
    return drawn
