"""Figures 4 and 5: the closed-form theory of section 3, with sizes counted from the models."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from weavejax.meshes import device_spec
from weavejax.models.config import ModelConfig
from weavejax.models.costs import cache_bytes, kernel_flops, operator_params, stored_params
from weavejax.models.presets import preset_config
from weavejax.models.sequence import operator_sequence
from weavejax.models.specs import Experts, Gemm
from weavejax.reproduce.figure import Figure
from weavejax.reproduce.scope import Bench
from weavejax.theory import (
    TheoryDevice,
    TheoryModel,
    best_heterogeneous_usd_per_token,
    bound_price_ratio,
    hardware_ratio,
    heterogeneous_gain,
    heterogeneous_gain_bound,
    heterogeneous_peak,
    homogeneous_gain,
    homogeneous_gain_cap,
    homogeneous_usd_per_token,
)
from weavejax.workbench import plots
from weavejax.workbench.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

QWEN_LARGE, GPT_OSS = "qwen3-235b-a22b", "gpt-oss-120b"
H100, H20 = "h100-sxm", "h20"
WAYS = {QWEN_LARGE: ((1, 8), (4, 8), (4, 16)), GPT_OSS: ((1, 4), (4, 4), (8, 8))}
"""(attention tensor parallelism, expert parallelism) of figure 4; the paper's text has none."""

CONTEXTS = tuple(int(1024 * 2 ** (k / 2)) for k in range(15))
DTYPE_BYTES = 2


def kv_bytes(config: ModelConfig, context: int) -> int:
    """m_kv(s): cache of one request, in bytes."""
    return sum(cache_bytes(op, 1, context) for op in operator_sequence(config))


def active_params(config: ModelConfig) -> float:
    """P_act: GEMM parameters a token meets, of the experts only those it is routed to."""
    flops = sum(
        kernel_flops(kernel, 1, 1)
        for op in operator_sequence(config)
        for kernel in op.kernels
        if isinstance(kernel, Gemm | Experts)
    )
    return flops / 2


def group_model(config: ModelConfig, attention_ways: int, expert_ways: int) -> TheoryModel:
    """What ``expert_ways`` devices hold together.

    The attention stands ``expert_ways / attention_ways`` times, everything else once.
    """
    operators = operator_sequence(config)
    attention = sum(operator_params(op) for op in operators if op.row_parallel)
    copies = expert_ways // attention_ways
    params = stored_params(operators) + (copies - 1) * attention
    return TheoryModel(weights_bytes=DTYPE_BYTES * params, active_params=active_params(config))


def fig4(bench: Bench) -> Figure:
    """Gain of homogeneous disaggregation over colocation, and its cap."""
    rows = []
    for name, ways in WAYS.items():
        config = preset_config(name)
        cache = [kv_bytes(config, context) for context in CONTEXTS]
        for attention_ways, expert_ways in ways:
            device = TheoryDevice.from_spec(device_spec(H100), devices=expert_ways)
            model = group_model(config, attention_ways, expert_ways)
            gains = homogeneous_gain(device, model, cache)
            cap = homogeneous_gain_cap(device, model)
            for context, gain in zip(CONTEXTS, gains, strict=True):
                rows.append(
                    {
                        "model": name,
                        "configuration": f"TP{attention_ways}/EP{expert_ways}",
                        "context": context,
                        "gain": None if math.isnan(gain) else float(gain),
                        "cap": cap,
                    }
                )
    table = Table(records=tuple(rows))
    ends = []
    for key in dict.fromkeys((row["model"], row["configuration"]) for row in table):
        mine = table.where(model=key[0], configuration=key[1])
        gains = [g for g in mine.column("gain") if g is not None]
        ends.append(
            {
                "model": key[0],
                "configuration": key[1],
                "largest gain": max(gains),
                "cap M/(M - M_weights)": mine.records[0]["cap"],
                "gains from (tokens)": next(
                    (r["context"] for r in mine if r["gain"] and r["gain"] > 1.001), None
                ),
            }
        )
    below = all(row["gain"] is None or row["gain"] < row["cap"] for row in table)
    shortest = table.where(context=CONTEXTS[0])
    at_one = sum(row["gain"] is not None and row["gain"] <= 1.001 for row in shortest)
    return Figure(
        name="fig4",
        title="Figure 4: theoretical gain of homogeneous disaggregation over colocation (H100)",
        data=table,
        sections=(("Ends of the curves", Table(records=tuple(ends))),),
        statement=(
            f"Agrees with Theorem 3.1: the gain rises with the context and stays "
            f"{'below' if below else 'NOT BELOW'} its cap; at {CONTEXTS[0]:,} tokens it is still 1 "
            f"for {at_one} of {len(shortest)} configurations. The paper's text states neither "
            "values nor its parallelism; these configurations are ours, in bfloat16 throughout "
            "(the published GPT-OSS weights are MXFP4, a quarter of this, which lowers its cap)."
        ),
        draw=lambda: _draw_fig4(table),
    )


def _draw_fig4(table: Table) -> Drawing:
    drawn = plots.figure(1, 2, width=4.6)
    for axes, model in zip(drawn.axes, WAYS, strict=True):
        rows = table.where(model=model)
        names = list(dict.fromkeys(rows.column("configuration")))
        series = {name: rows.where(configuration=name).column("gain") for name in names}
        plots.lines(
            axes,
            CONTEXTS,
            series,
            x_label="context (tokens)",
            y_label="colocated cost / disaggregated cost",
            title=f"{model} on H100 (dashed: cap)",
            log_x=True,
        )
        plots.token_axis(axes, CONTEXTS[::2])
        for name in names:
            cap = rows.where(configuration=name).records[0]["cap"]
            axes.axhline(cap, ls="--", lw=1, color=plots.colour(name, names))
        axes.legend(frameon=False, loc="upper right", bbox_to_anchor=(1, 0.78))
    return drawn


def fig5(bench: Bench) -> Figure:
    """Cost of one type and of two, Qwen3-235B on H100 and H20."""
    config = preset_config(QWEN_LARGE)
    model = group_model(config, 8, 8)
    h100, bare = (TheoryDevice.from_spec(device_spec(name)) for name in (H100, H20))
    assert h100.usd_per_s is not None
    touching = h100.usd_per_s / bound_price_ratio(h100, dataclasses.replace(bare, usd_per_s=1.0))
    rows, peaks = [], []
    for factor in (0.5, 1.0, 2.0):
        h20 = dataclasses.replace(bare, usd_per_s=factor * touching)
        cache = np.array([kv_bytes(config, context) for context in CONTEXTS], dtype=float)
        one = homogeneous_usd_per_token(h100, model, cache)
        two = homogeneous_usd_per_token(h20, model, cache)
        both = best_heterogeneous_usd_per_token([h100, h20], model, cache)
        gain = heterogeneous_gain([h100, h20], model, cache)
        price = factor * touching * 3600
        for i, context in enumerate(CONTEXTS):
            rows.append(
                {
                    "h20 usd per hour": price,
                    "context": context,
                    "H100 only": float(one[i] * 1e6),
                    "H20 only": float(two[i] * 1e6),
                    "H20 attention, H100 GEMM": float(both[i] * 1e6),
                    "gain": float(gain[i]),
                }
            )
        peak = heterogeneous_peak(h100, h20, model)
        peaks.append(
            {
                "h20 usd per hour": price,
                "largest gain on these contexts": float(gain.max()),
                "peak gain of Theorem 3.2": None if peak is None else peak.gain,
                "bound (1 + sqrt(eta))/2": heterogeneous_gain_bound(h100, h20),
            }
        )
    table = Table(records=tuple(rows))
    eta = hardware_ratio(h100, bare)
    return Figure(
        name="fig5",
        title="Figure 5: one and two device types, Qwen3-235B on H100 and H20 (theory)",
        data=table,
        sections=(("Peaks, by the price of an H20 hour", Table(records=tuple(peaks))),),
        statement=(
            f"Agrees with Theorem 3.2: one peak per price, never above (1 + sqrt(eta))/2 = "
            f"{heterogeneous_gain_bound(h100, bare):.2f} (eta {eta:.2f}). The paper's text gives "
            "neither its H20 price nor its values, so three prices are shown: the middle one "
            f"(${touching * 3600:.2f} an hour) is where the peak touches the bound."
        ),
        draw=lambda: _draw_fig5(table, touching * 3600),
    )


def _draw_fig5(table: Table, middle_usd_per_hour: float) -> Drawing:
    drawn = plots.figure(1, 2, width=4.6)
    left, right = drawn.axes
    prices = list(dict.fromkeys(table.column("h20 usd per hour")))
    rows = table.where(**{"h20 usd per hour": prices[1]})
    best = rows.column("H20 attention, H100 GEMM")
    plots.lines(
        left,
        CONTEXTS,
        {
            name: [v / b for v, b in zip(rows.column(name), best, strict=True)]
            for name in ("H100 only", "H20 only", "H20 attention, H100 GEMM")
        },
        x_label="context (tokens)",
        y_label="cost / cost of both types",
        title=f"H20 at ${middle_usd_per_hour:.2f} an hour",
        log_x=True,
    )
    plots.token_axis(left, CONTEXTS[::2])
    left.legend(frameon=False, fontsize=8)
    plots.lines(
        right,
        CONTEXTS,
        {
            f"H20 at ${price:.2f}/h": table.where(**{"h20 usd per hour": price}).column("gain")
            for price in prices
        },
        x_label="context (tokens)",
        y_label="best single type / both types",
        title="gain of mixing H100 and H20",
        log_x=True,
    )
    plots.token_axis(right, CONTEXTS[::2])
    right.legend(frameon=False, fontsize=8)
    return drawn
