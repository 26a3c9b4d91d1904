"""Benchmarks count what they say they count."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from serving import group, make_plan, nine_heads

from weavejax.bench import bench_decode, bench_throughput, load_requests, random_requests
from weavejax.cli import main
from weavejax.meshes.cluster import Cluster
from weavejax.plan import Template
from weavejax.serve import serve


def test_throughput_counts_every_token_once() -> None:
    model = nine_heads()
    plan = make_plan(model, Template(), group(2), context=32)
    priced = Cluster.parse("h100-sxm:1")
    plan = plan.replace(
        cluster=priced,
        groups=tuple(dataclasses.replace(group, device="h100-sxm") for group in plan.groups),
    )
    requests = random_requests(5, 6, 8, vocab_size=model.config.vocab_size, spread=0.5, seed=3)
    seen = []
    with serve(model, plan, prefill_chunks=(8,)) as engine:
        result = bench_throughput(engine, requests, progress=lambda *done: seen.append(done))
        stats = engine.stats()
    assert result.failed == 0 and result.requests == 5
    assert result.input_tokens == sum(len(r.prompt) for r in requests) == stats.prompt_tokens
    assert result.output_tokens == sum(r.max_tokens for r in requests)
    assert result.output_tokens_per_s == pytest.approx(result.output_tokens / result.duration_s)
    assert 0 < result.time_to_first_token.p50_s <= result.time_to_first_token.p99_s
    assert result.time_per_output_token.mean_s > 0
    hourly = priced.device("h100-sxm").usd_per_hour
    assert hourly is not None
    assert result.usd_per_million_output_tokens == pytest.approx(
        hourly / 3600 / result.output_tokens_per_s * 1e6
    )
    assert seen[-1] == ("requests", 5, 5)


def test_decode_measures_every_batch_and_context() -> None:
    model = nine_heads()
    points = bench_decode(
        model,
        lambda batch, context: make_plan(model, Template(), group(batch), context=context),
        (1, 2),
        (16,),
        repeats=1,
        iterations=2,
    )
    assert [(point.batch, point.context) for point in points] == [(1, 16), (2, 16)]
    for point in points:
        assert point.ratio == point.step_s / point.gemm_s > 0
        assert point.tokens_per_s == point.batch / point.step_s


def test_lengths_vary_within_the_spread() -> None:
    requests = random_requests(200, 10, 20, vocab_size=7, spread=0.5)
    inputs = [len(request.prompt) for request in requests]
    outputs = [request.max_tokens for request in requests]
    assert (min(inputs), max(inputs), min(outputs), max(outputs)) == (5, 15, 10, 30)
    assert requests == random_requests(200, 10, 20, vocab_size=7, spread=0.5)
    with pytest.raises(ValueError, match="got 0 requests"):
        random_requests(0, 1, 1, vocab_size=7)
    with pytest.raises(ValueError, match="below 1, got 1"):
        random_requests(1, 1, 1, vocab_size=7, spread=1)


def test_a_dataset_is_json_lines(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text('{"prompt": "hi", "max_tokens": 3}\n\n{"prompt": [1, 2]}\n')
    requests = load_requests(file, max_tokens=9)
    assert [(r.prompt, r.max_tokens) for r in requests] == [("hi", 3), ([1, 2], 9)]
    file.write_text("nonsense\n")
    with pytest.raises(ValueError, match=r"jsonl:1: a line is"):
        load_requests(file, max_tokens=9)
    file.write_text("")
    with pytest.raises(ValueError, match="holds no requests"):
        load_requests(file, max_tokens=9)


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "throughput", "llama-3.1-8b", "--random-weights", "--json", "--slots", "2"]
    assert main([*words, "--requests", "3", "--input-len", "4", "--output-len", "5"]) == 0
    assert json.loads(capsys.readouterr().out)["output_tokens"] == 15
    assert main(["bench", "decode", "qwen3-235b-a22b", "--random-weights"]) == 2
    assert "dense model" in capsys.readouterr().err
