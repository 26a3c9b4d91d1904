"""Figure 6: whether core attention and the rest of a model can be balanced (appendix A.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weavejax.meshes import device_spec
from weavejax.models.costs import stored_params
from weavejax.models.presets import preset_config
from weavejax.models.sequence import operator_sequence
from weavejax.reproduce.figure import Figure
from weavejax.reproduce.scope import Bench
from weavejax.theory import (
    TheoryDevice,
    cad_balance,
)
from weavejax.workbench import plots
from weavejax.workbench.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

from weavejax.reproduce.theory_figures import DTYPE_BYTES, H20, H100, QWEN_LARGE

BALANCE_WAYS = (4, 8, 16, 32)
BALANCE_DEVICES = ((H100, H100), (H20, H100), (H100, "l40s"))
MICROBATCHES = 2


def fig6(bench: Bench) -> Figure:
    """Whether core attention and the rest can take equally long (A.6)."""
    params = stored_params(operator_sequence(preset_config(QWEN_LARGE)))
    rows = []
    for attention, rest in BALANCE_DEVICES:
        for ways in BALANCE_WAYS:
            balance = cad_balance(
                TheoryDevice.from_spec(device_spec(attention)),
                TheoryDevice.from_spec(device_spec(rest)),
                rest_weights_bytes=DTYPE_BYTES * params / ways,
                microbatches=MICROBATCHES,
            )
            rows.append(
                {
                    "attention on": attention,
                    "rest on": rest,
                    "rest over (devices)": ways,
                    "attention at most (ms)": balance.attention_time_max_s * 1e3,
                    "rest at least (ms)": balance.rest_time_min_s * 1e3,
                    "ranges overlap": balance.feasible,
                }
            )
    table = Table(records=tuple(rows))
    yes = sum(table.column("ranges overlap"))
    return Figure(
        name="fig6",
        title="Figure 6: can core attention and the rest be balanced? (Qwen3-235B, theory)",
        data=table,
        sections=((f"{MICROBATCHES} microbatches", table),),
        statement=(
            f"Agrees: both cases of the paper's sketch occur, {yes} of {len(table)} combinations "
            "overlap and the others leave bubbles at any batch; spreading the weights over more "
            "devices lowers the rest's floor until they meet. The paper's figure is a sketch "
            "without numbers."
        ),
        draw=lambda: _draw_fig6(table),
    )


def _draw_fig6(table: Table) -> Drawing:
    drawn = plots.figure(width=7.0, height=4.4)
    axes = drawn.axes[0]
    right = 5 * max(table.column("attention at most (ms)"))
    for line, row in enumerate(table):
        least, most = row["rest at least (ms)"], row["attention at most (ms)"]
        axes.barh(line - 0.18, most, 0.34, color="#56b4e9", label="attention can take")
        axes.barh(
            line + 0.18,
            max(0.0, right - least),
            0.34,
            left=least,
            color="#e69f00",
            label="rest takes",
        )
        if least > right:
            axes.text(right * 0.99, line + 0.18, f"from {least:.0f} ms", va="center", ha="right")
        verdict = "overlap" if row["ranges overlap"] else "bubbles"
        axes.text(right * 1.01, line, verdict, va="center", fontsize=8)
    names = [f"{r['attention on']} | {r['rest over (devices)']} x {r['rest on']}" for r in table]
    axes.set_yticks(range(len(table)), names, fontsize=8)
    axes.set_xlim(0, right * 1.12)
    axes.invert_yaxis()
    axes.set_xlabel("time of one pass over the model (ms)")
    axes.set_title("qwen3-235b-a22b: core attention on | the rest over", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    drawn.legend(handles[:2], labels[:2], loc="outside upper center", ncols=2, frameon=False)
    return drawn
