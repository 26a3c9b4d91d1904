"""Ratios in one run: who is timed, how results are kept, and that both batchings agree."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import hf_tiny
import pytest
from serving import tiny_model

from weavejax.bench.batching import bench_batching, mixed_requests
from weavejax.bench.compare import ComparedPoint, bench_compare
from weavejax.bench.host import bench_host
from weavejax.bench.interleaved import median_times_s
from weavejax.bench.llama_contestant import LlamaCpp, cores_here
from weavejax.bench.results import compare_results, read_results, write_results
from weavejax.bench.smoke import Check
from weavejax.cli import main
from weavejax.cli.bench_ratios import host_plans
from weavejax.models.loading import load_model
from weavejax.request import SamplingParams
from weavejax.serve import serve


def test_subjects_take_turns_and_the_median_counts() -> None:
    order: list[str] = []
    times = {"a": iter((1.0, 9.0, 2.0)), "b": iter((5.0, 4.0, 6.0))}

    def subject(name: str):
        def run() -> float:
            order.append(name)
            return next(times[name])

        return run

    assert median_times_s({n: subject(n) for n in "ab"}, 3) == {"a": 2.0, "b": 5.0}
    assert order == list("ababab")
    with pytest.raises(ValueError, match="rounds must be at least 1, got 0"):
        median_times_s({}, 0)


@pytest.mark.slow
def test_compare_times_plans_and_transformers(capsys, tmp_path: Path) -> None:
    checkpoint, output = tmp_path / "llama", tmp_path / "results.json"
    hf_tiny.write_hf_checkpoint("llama", checkpoint)
    arguments = ["bench", "compare", str(checkpoint), "--plans", "colocated", "afd", "--batch", "2"]
    arguments += ["--context", "16", "--prompt", "8", "--rounds", "1"]
    arguments += ["--dtypes", "float32", "bfloat16"]
    assert main([*arguments, "--against", "transformers", "-o", str(output), "--json"]) == 0
    decode, prefill = json.loads(capsys.readouterr().out)
    assert (decode["work"], prefill["work"]) == ("decode", "prefill")
    for point in (decode, prefill):
        names = list(point["times_s"])
        assert names[:4] == ["colocated", "afd", "colocated bfloat16", "afd bfloat16"]
        assert any(name.startswith("transformers") for name in names[4:])
        assert all(time_s > 0 for time_s in point["times_s"].values())
    # The same work against itself, and against a past in which everything was much better.
    kept = read_results(output)
    better = [
        ComparedPoint(
            work=p.work,
            batch=p.batch,
            tokens=p.tokens,
            times_s={n: t * (1e-3 if n == "colocated" else 1e-6) for n, t in p.times_s.items()},
        )
        for p in kept
    ]
    assert compare_results(kept, kept, 0.0) == []
    assert compare_results(better, kept, 0.25) != []


def test_results_name_what_has_become_worse(tmp_path: Path) -> None:
    def point(afd: float, theirs: float) -> ComparedPoint:
        times = {"colocated": 1.0, "afd": afd, "transformers sdpa float32": theirs}
        return ComparedPoint(work="decode", batch=8, tokens=128, times_s=times)

    both = ComparedPoint(
        work="decode",
        batch=8,
        tokens=128,
        times_s={"afd": 2.0, "afd bfloat16": 1.0, "cad": 0.1, "transformers sdpa float32": 1.5},
    )
    assert both.ratio == 1.5
    path = tmp_path / "before.json"
    write_results(path, "m", [point(1.1, 2.0)])
    before = read_results(path)
    assert before == [point(1.1, 2.0)] and before[0].ratio == 2.0
    assert compare_results(before, [point(1.3, 1.6)], 0.25) == []
    slower, behind = compare_results(before, [point(1.5, 1.4)], 0.25)
    assert "colocated has 1.40 times the speed of transformers, was 2.00" in slower
    assert "afd takes 1.50 of the time of colocated, was 1.10" in behind
    path.write_text("{}")
    with pytest.raises(ValueError, match="must hold results of `weavejax bench compare"):
        read_results(path)


def test_comparing_needs_a_model_that_transformers_knows() -> None:
    model = tiny_model("llama-3.1-8b")
    with pytest.raises(ValueError, match=r"transformers has no config for .*--against"):
        bench_compare(model, lambda *_: None, ["colocated"])  # type: ignore[arg-type]


def test_llama_cpp_needs_its_package_and_a_gguf_file(monkeypatch: pytest.MonkeyPatch) -> None:
    model, installed = tiny_model("llama-3.1-8b"), importlib.util.find_spec

    def compare() -> None:
        bench_compare(model, lambda *_: None, ["colocated"], against=["llama.cpp"])  # type: ignore[arg-type]

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install llama-cpp-python"):
        compare()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: installed("json"))
    with pytest.raises(ValueError, match="reads GGUF files, got weights from"):
        compare()


@pytest.mark.slow
def test_llama_cpp_computes_the_tokens_of_its_file() -> None:
    pytest.importorskip("llama_cpp")
    model = load_model("smollm2-135m-instruct")
    prompt = model.tokenizer.encode("The capital of France is")
    contestant = LlamaCpp(model, cores_here())
    assert contestant.prefill(prompt)() > 0 and contestant.decode(3, 24, 4)() > 0
    held, count = contestant._context(2, 16), len(prompt)
    logits = contestant._evaluate(held, prompt * 2, [*range(count)] * 2, [0] * count + [1] * count)
    with serve(model, "colocated", slots=1, context=32, prefill_chunks=(8,)) as engine:
        [ours] = engine.generate([prompt], SamplingParams(max_tokens=1, temperature=0.0))
    for row in (logits[count - 1], logits[2 * count - 1]):
        assert [int(row.argmax())] == list(ours.token_ids)


def test_both_batchings_give_the_same_tokens() -> None:
    model = tiny_model("llama-3.1-8b")
    requests = mixed_requests(7, 3, 4, vocab_size=model.config.vocab_size)
    assert len({request.max_tokens for request in requests}) > 2
    assert max(request.max_tokens for request in requests) <= 32
    with serve(model, "colocated", slots=2, context=40, prefill_chunks=(8,)) as engine:
        result = bench_batching(engine, requests)
    assert (result.requests, result.slots) == (7, 2)
    assert result.output_tokens == sum(request.max_tokens for request in requests)
    assert result.ratio == result.static_s / result.continuous_s


@pytest.mark.slow
def test_host_cost_counts_every_action() -> None:
    model = tiny_model("llama-3.1-8b")
    plans = host_plans(model, 2, 32)
    assert [name for name, _ in plans][:2] == ["cad", "afd over 1 layer"]
    cad, afd = bench_host(model, plans[:2], iterations=2)
    layers = model.config.num_layers
    assert (cad.stages, cad.moves) == (2 * layers + 1, 2 * layers + 1)
    assert (afd.stages, afd.moves) == (2 * layers, 2 * layers)
    for point in (cad, afd):
        assert point.run_s > 0 and point.move_s > 0 and 0 < point.share


def test_a_check_holds_on_the_right_side() -> None:
    assert Check(name="r", value=1.5, margin=2.0, at_most=True).holds
    assert not Check(name="r", value=2.5, margin=2.0, at_most=True).holds
    assert Check(name="r", value=1.5, margin=1.2, at_most=False).holds
    assert not Check(name="r", value=1.0, margin=1.2, at_most=False).holds


def test_smoke_refuses_experts(capsys) -> None:
    assert main(["bench", "smoke", "gpt-oss-20b", "--random-weights"]) == 2
    assert "needs a dense model" in capsys.readouterr().err
