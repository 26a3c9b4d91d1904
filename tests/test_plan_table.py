"""A plan as a table."""

from __future__ import annotations

import io

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from strategies import architecture, configs, templates

from weavejax.default_plans import default_plan, model_ref
from weavejax.plan import DeviceGroup, Plan, Template, Workload
from weavejax.plan_table import (
    describe_group,
    describe_interface,
    describe_operators,
    first_block,
    plan_table,
)
from weavejax.schedule import build_schedule


def plan_for(config, template, groups, **group):
    one = DeviceGroup(**({"device": "cpu", "resident_batch": 8} | group))
    return Plan(
        model=model_ref(config),
        workload=Workload(context=32),
        template=template,
        groups=(one,) * groups,
    )


def text(table):
    console = Console(file=io.StringIO(), width=160, color_system=None)
    console.print(table)
    return console.file.getvalue()


def rows(config, plan):
    """The cells of every row, top to bottom."""
    return list(zip(*(column.cells for column in plan_table(plan, config).columns), strict=True))


def test_afd_of_a_llama_reads_like_this():
    config = architecture("llama-3.1-8b")
    assert rows(config, default_plan(config, "afd", devices=4, device="l40s")) == [
        ("0", "0", "1 x l40s (TP 2)", "attn_in attn_core attn_out", "h (64 values)"),
        ("1", "1", "1 x l40s (TP 2)", "ffn", "x (64 values)"),
    ]


def test_cad_of_a_llama_reads_like_this():
    config = architecture("llama-3.1-8b")
    heads, width = config.num_heads, config.head_dim
    shared = 2 * config.num_kv_heads * width
    assert [row[3:] for row in rows(config, default_plan(config, "cad"))] == [
        ("attn_core", f"attn ({heads * width} values)"),
        ("attn_out ffn attn_in(+1)", f"q k v ({heads * width + shared} values)"),
    ]


def test_a_long_stage_is_shortened_and_one_group_sends_nothing():
    config = architecture("gemma-3-4b")
    [row] = rows(config, plan_for(config, Template(layers=3), 1))
    assert row[3:] == ("attn_in attn_core attn_out ffn ... ffn(+2)", "nothing")


def test_the_title_says_batch_microbatches_and_context():
    config = architecture("llama-3.1-8b")
    plan = default_plan(config, "afd", context=64)
    title = "afd plan for llama-3.1-8b-tiny: 8 slots, 1 microbatch, context 64"
    assert title in text(plan_table(plan, config))
    assert "2 microbatches" in text(plan_table(plan.replace(microbatches=2), config))


def test_a_group_names_its_parallelism():
    config = architecture("gpt-oss-20b")
    plan = plan_for(
        config,
        Template(),
        1,
        replicas=2,
        tensor_parallel=4,
        expert_parallel=4,
        attention_data_parallel=4,
    )
    assert describe_group(plan, 0) == "2 x cpu (TP 4, EP 4, attention DP 4)"
    assert describe_group(plan_for(config, Template(), 1), 0) == "1 x cpu"


@given(st.data())
@settings(max_examples=60)
def test_every_stage_position_has_one_row_in_order(data):
    config, groups = data.draw(configs()), data.draw(st.integers(1, 3))
    template = data.draw(templates(groups, max_layers=min(3, config.num_layers)))
    plan = plan_for(config, template, groups)
    schedule = build_schedule(plan, config)
    block = first_block(schedule)
    assert [o.position for o in block] == list(range(template.num_stages))
    table = plan_table(plan, config)
    assert table.row_count == template.num_stages
    for occurrence in block:
        assert describe_operators(schedule, occurrence.index)
        crossing = describe_interface(schedule, occurrence.index)
        assert (crossing == "nothing") == (not schedule.interfaces[occurrence.index])
