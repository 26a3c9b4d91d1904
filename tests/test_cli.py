"""The command line: what it prints, what it refuses, and its exit status."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from weavejax.cli import main
from weavejax.cli.limits import read_limits
from weavejax.cli.main import build_parser
from weavejax.models.loading import load_model
from weavejax.plan import Plan
from weavejax.planner import SearchLimits
from weavejax.schedule import build_schedule

PLAN = ["plan", "gemma-3-27b", "--cluster", "h100-sxm:16", "--context", "32768"]
QUICK = ["--max-devices", "8", "--max-groups", "2", "--no-offsets"]


def shell(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, where JAX is not running yet."""
    return subprocess.run(
        [sys.executable, "-m", "weavejax.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=400,
        cwd=cwd,
    )


def test_plan_writes_and_simulate_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, trace = tmp_path / "plan.json", tmp_path / "trace.json"
    assert main([*PLAN, *QUICK, "--tpot-slo-ms", "60", "-o", str(file)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "proven cheapest of the grid" in text and "per million output tokens" in text
    plan = Plan.load(file)
    assert plan.prediction is not None
    assert main(["simulate", str(file), "--trace", str(trace)]) == 0
    shown = capsys.readouterr().out
    assert f"round-trip time {plan.prediction.round_trip_time_s * 1e3:.3f} ms" in shown
    assert json.loads(trace.read_text())["traceEvents"]


def test_explain_computes_again_what_a_file_claims(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    assert main([*PLAN, *QUICK, "--tpot-slo-ms", "60", "-o", str(file)]) == 0
    assert main(["explain", str(file), "--brief"]) == 0
    shown = capsys.readouterr()
    assert "not this plan's" not in shown.err
    data = json.loads(file.read_text())
    honest = f"{data['prediction']['usd_per_million_tokens']:.4f}"
    data["prediction"]["usd_per_million_tokens"] = 0.0001
    file.write_text(json.dumps(data))
    assert main(["explain", str(file), *QUICK, "--no-what-if"]) == 0
    shown = capsys.readouterr()
    assert "not this plan's" in shown.err
    assert honest in shown.out and "0.0001" not in shown.out
    assert "isaggregate" in shown.out  # the verdict, either way


def test_profile_shows_what_it_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile"]) == 0
    assert "h100-sxm" in capsys.readouterr().out
    assert main(["profile", "--paper-points"]) == 0
    assert "paper   700 us" in capsys.readouterr().out


def test_explain_searches_rivals_under_the_plan_s_limits() -> None:
    parser = build_parser()
    found = SearchLimits(max_devices=8, min_groups=2, batches=(3, 5), offsets=False)
    plain = parser.parse_args(["explain", "plan.json"])
    assert read_limits(plain, found) == found
    changed = parser.parse_args(["explain", "plan.json", "--max-batch", "4", "--offsets"])
    wider = dataclasses.replace(found, max_batch=4, batches=(), offsets=True)
    assert read_limits(changed, found) == wider and wider.batches == (1, 2, 3, 4)


def test_every_limit_option_reaches_the_search() -> None:
    words = "--max-devices 5 --max-groups 2 --max-replicas 3 --max-microbatches 1 --max-batch 7"
    options = [*PLAN, "--tpot-slo-ms", "1", *words.split(), "--tensor-parallel", "1", "4"]
    expected = SearchLimits(
        max_devices=5,
        max_groups=2,
        max_replicas=3,
        max_microbatches=1,
        max_batch=7,
        tensor_parallel=(1, 4),
        offsets=False,
    )
    assert read_limits(build_parser().parse_args([*options, "--no-offsets"])) == expected
    assert read_limits(build_parser().parse_args([*PLAN, "--tpot-slo-ms", "1"])) == SearchLimits()


def test_a_plan_for_the_tiny_model_is_for_what_random_weights_load(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["plan", "gemma-3-27b", "--cluster", "h100-sxm:1,l40s:1", "--context", "64"]
    words += ["--tpot-slo-ms", "1000", "--max-batch", "2", "--max-groups", "1", "--json"]
    assert main([*words, "--random-weights"]) == 0
    plan = Plan.from_dict(json.loads(capsys.readouterr().out))
    model = load_model("gemma-3-27b", random_weights=True, scale="tiny")
    build_schedule(plan, model.config)
    assert plan.model.name == "gemma-3-27b-tiny" and plan.batch <= 2


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "generate" in capsys.readouterr().out


def test_ids_stand_for_text_where_there_is_no_tokenizer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["generate", "llama-3.1-8b", "1,2,3", "7", "--random-weights", "--max-tokens", "3"]
    assert main([*words, "--context", "32", "--slots", "2", "--json"]) == 0
    outputs = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [output["prompt_token_ids"] for output in outputs] == [[1, 2, 3], [7]]


def test_plan_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, *QUICK, "--tpot-slo-ms", "60", "--json"]) == 0
    plan = Plan.from_dict(json.loads(capsys.readouterr().out))
    assert plan.model.name == "gemma-3-27b"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*PLAN, "--tpot-slo-ms", "0.1"], "nearest"),
        ([*PLAN, "--tpot-slo-ms", "-5"], "tpot_slo_s must be a positive number"),
        (["plan", "gema-3-27b", *PLAN[2:], "--tpot-slo-ms", "60"], "did you mean 'gemma-3-27b'"),
        (["simulate", "nowhere.json"], "does not exist"),
        (["generate", "smollm2-135m-instruct", "x", "--temperature", "-1"], "temperature"),
        (["generate", "smollm2-135m-instruct", "x", "--max-tokens", "0"], "max_tokens"),
        (["generate", "no-such-model", "x"], "no-such-model"),
        (["generate", "smollm2-135m-instruct", "x", "--cpu-devices", "0"], "--cpu-devices"),
        (["generate", "smollm2-135m-instruct", "x", "--cpu-devices", "100000"], "1..1024"),
        (["generate", "smollm2-135m-instruct", "x", "--plan", "weave"], "planned with first"),
        (["check", "smollm2-135m-instruct", "--plan", "weave"], "planned with first"),
        ([*PLAN, "--tpot-slo-ms", "60", "--policy", "mine"], "--policy-module FILE.py"),
        ([*PLAN, "--tpot-slo-ms", "60", "--policy", "afd,cad"], "by spaces on the command line"),
        (["generate", "llama-3.1-8b", "x", "--random-weights"], "token ids such as 1,2,3; got 'x'"),
        ([*PLAN, "--tpot-slo-ms", "60", "-o", "/"], "must be a file, got the directory '/'"),
        ([*PLAN, "--tpot-slo-ms", "60", "-o", "/no/plan.json"], "folder must exist"),
        (["simulate", "p.json", "--trace", "/"], "must be a file"),
    ],
)
def test_wrong_requests_say_why(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error and "Traceback" not in error


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [[], ["--dtype", "bfloat16"]], ids=["default", "bfloat16"])
def test_generate_prints_json_through_a_plan(tmp_path: Path, dtype: list[str]) -> None:
    words = ["generate", "smollm2-135m-instruct", "The capital of France is", "", "--json"]
    words += ["--max-tokens", "6", "--context", "128", "--cpu-devices", "2"]
    result = shell(*words, "--plan", "cad", *dtype, cwd=tmp_path)
    assert result.returncode == 1, result.stderr  # the empty prompt fails alone
    good, bad = (json.loads(line) for line in result.stdout.splitlines())
    assert "Paris" in good["text"] and len(good["token_ids"]) == 6
    assert bad["finish_reason"] == "error" and "empty prompt" in bad["error"]
    assert "Traceback" not in result.stderr


def test_too_many_cpu_devices_after_jax_started(capsys: pytest.CaptureFixture[str]) -> None:
    import jax

    assert jax.device_count() == 8  # the backend is up
    assert main(["generate", "llama-3.1-8b", "x", "--random-weights", "--cpu-devices", "9"]) == 2
    assert "start a new process" in capsys.readouterr().err
