"""Length distributions, the files they come from, and plans for their mean and tail."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weavejax as wj
from weavejax.cli import main
from weavejax.workbench.length_files import (
    LengthFileError,
    azure_lengths,
    generation_lengths,
    load_lengths,
    sharegpt_lengths,
)
from weavejax.workbench.lengths import Lengths, plan_for_lengths

SMALL = wj.SearchLimits(max_devices=2, max_groups=1, max_replicas=1, tensor_parallel=(1, 2))


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 100)), min_size=1, max_size=30),
    st.floats(1, 1e6),
    st.floats(0.01, 1),
)
def test_a_weighted_distribution_is_the_repeated_one(pairs, mean, share) -> None:  # type: ignore[no-untyped-def]
    tokens, weights = zip(*pairs, strict=True)
    lengths, repeated = Lengths(tokens, weights), np.repeat(tokens, weights)
    assert lengths.mean == pytest.approx(repeated.mean())
    assert lengths.deviation == pytest.approx(repeated.std(), abs=1e-6 * max(tokens))
    assert (repeated <= lengths.quantile(share)).mean() >= share - 1e-9
    assert (repeated < lengths.quantile(share)).mean() <= share + 1e-9
    scaled = lengths.rescaled(mean)
    assert scaled.mean == pytest.approx(mean)
    assert scaled.quantile(share) == pytest.approx(lengths.quantile(share) * mean / lengths.mean)


def test_a_lognormal_has_its_mean_and_spread() -> None:
    lengths = Lengths.lognormal(8192, 0.5)
    assert lengths.mean == pytest.approx(8192)
    assert np.log(np.asarray(lengths.tokens)).std() == pytest.approx(0.5, rel=0.01)
    assert Lengths.lognormal(100, 0).quantile(1.0) == pytest.approx(100)


@pytest.mark.parametrize("rows", [2, 32, 63, 64, 256])
def test_the_tail_of_a_batch_is_that_of_drawn_batches(rows: int) -> None:
    lengths = Lengths.lognormal(1000, 0.5)
    drawn = np.random.default_rng(7).choice(np.asarray(lengths.tokens), (20_000, rows)).mean(1)
    assert lengths.batch_mean(rows, 0.99) == pytest.approx(np.quantile(drawn, 0.99), rel=0.03)


def test_larger_batches_have_shorter_tails() -> None:
    lengths = Lengths.lognormal(1000, 1.0)
    tails = [lengths.batch_mean(rows, 0.99) for rows in (1, 4, 16, 64, 256)]
    assert tails == sorted(tails, reverse=True) and tails[-1] > lengths.mean


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Lengths([]), "as many weights, got 0 and 0"),
        (lambda: Lengths([1, 2], [1]), "as many weights, got 2 and 1"),
        (lambda: Lengths([1, -2]), "lengths must be positive and finite, got -2"),
        (lambda: Lengths([1, 2], [1, 0]), "weights must be positive"),
        (lambda: Lengths.lognormal(-1, 1), "a positive mean"),
        (lambda: Lengths([1]).quantile(0), "above 0 and at most at 1, got 0"),
        (lambda: Lengths([1]).batch_mean(0, 0.5), "at least one row, got 0"),
        (lambda: Lengths([1]).rescaled(0), "positive and finite, got 0"),
    ],
)
def test_what_is_no_distribution_is_refused(make, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        make()


@given(st.integers(0, 1000), st.integers(1, 1000))
def test_a_request_counts_at_every_step_it_decodes(prompt: int, generated: int) -> None:
    steps = np.arange(prompt + 1, prompt + generated + 1)
    lengths = generation_lengths([(prompt, generated)], "here")
    assert lengths.mean == pytest.approx(steps.mean())
    assert (
        steps[0]
        <= np.asarray(lengths.tokens).min()
        <= np.asarray(lengths.tokens).max()
        <= steps[-1]
    )


def test_longer_generations_weigh_more() -> None:
    lengths = generation_lengths([(100, 10), (1000, 30)], "here")
    assert lengths.mean == pytest.approx((10 * 105.5 + 30 * 1015.5) / 40)


def test_numbers_one_a_line(tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("# tokens\n100\n\n300\n")
    assert load_lengths(file).mean == 200


def test_the_azure_form(tmp_path: Path) -> None:
    file = tmp_path / "azure.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,4808,10\n"
        "2023-11-16 18:15:50.99,3180,8\n2023-11-16 18:15:51.00,10,0\n"
    )
    expected = (10 * (4808 + 5.5) + 8 * (3180 + 4.5)) / 18
    assert load_lengths(file).mean == azure_lengths(file).mean == pytest.approx(expected)


def test_the_sharegpt_form(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    turns = [("human", "a b"), ("gpt", "c d e"), ("human", "f"), ("gpt", "g h")]
    chat = {"id": "1", "conversations": [{"from": who, "value": text} for who, text in turns]}
    file.write_text(json.dumps([chat]))
    lengths = sharegpt_lengths(file, count_tokens=lambda text: len(text.split()))
    assert lengths.mean == pytest.approx((3 + 4 + 5 + 7 + 8) / 5)
    assert load_lengths(file).mean < lengths.mean  # four bytes a token count fewer of these


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "", "one length in tokens a line is needed"),
        ("a.txt", "12\nmany", "line 2: a number is needed, got 'many'"),
        ("a.csv", "ContextTokens,Other\n1,2\n", "missing GeneratedTokens"),
        ("a.csv", "ContextTokens,GeneratedTokens\n1,\n", "line 2: a number is needed"),
        ("a.csv", "ContextTokens,GeneratedTokens\n1,0\n", "no request that generates a token"),
        ("a.json", "{", "not JSON"),
        ("a.json", "{}", "ShareGPT is a list, got dict"),
        ("a.json", '[{"turns": []}]', "entry 0 needs 'conversations'"),
    ],
)
def test_what_holds_no_lengths_says_what_it_holds(tmp_path, name, text, message) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(LengthFileError, match=message):
        load_lengths(file)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(LengthFileError, match="no such file"):
        load_lengths(tmp_path / "nowhere.txt")


def test_the_tail_plan_holds_its_own_tail() -> None:
    lengths = Lengths.lognormal(8192, 1.0)
    answer = plan_for_lengths("gemma-3-4b", "h100-sxm:2", lengths, 0.05, limits=SMALL)
    assert answer.mean.plan is not None and answer.tail.plan is not None
    assert answer.mean.plan.workload.context == 8192
    rows = min(group.resident_batch for group in answer.tail.plan.groups)
    assert lengths.batch_mean(rows, 0.99) <= answer.tail_context
    assert answer.tail.usd_per_million_tokens >= answer.mean.usd_per_million_tokens
    assert [row["planned for"] for row in answer.table] == [
        "mean", "mean, met by the 99% batch", "99% batch",
    ]  # fmt: skip
    assert (answer.table.records[1]["status"] == "ok") == (answer.fits_tail and answer.meets_tail)


def test_one_length_has_no_tail() -> None:
    answer = plan_for_lengths("gemma-3-4b", "h100-sxm:2", Lengths([4096.0]), 0.05, limits=SMALL)
    assert answer.tail_context == 4096 and answer.fits_tail and answer.meets_tail
    assert answer.tail.usd_per_million_tokens == answer.mean.usd_per_million_tokens
    assert "+0.0%" in answer.describe()


def test_nothing_fits_is_an_answer() -> None:
    answer = plan_for_lengths("gemma-3-4b", "h100-sxm:2", Lengths([4096.0]), 1e-6, limits=SMALL)
    assert answer.fits_tail is None and "no plan at the mean: latency binds" in answer.describe()


def test_the_command_reads_and_rescales(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("10\n30\n")
    arguments = ["what-if", "lengths", "gemma-3-4b", "--cluster", "h100-sxm:1", "--max-groups", "1"]
    arguments += ["--tpot-slo-ms", "50", "--max-replicas", "1", "--lengths", str(file)]
    assert main([*arguments, "--rescale-to", "2048"]) == 0
    assert "| mean | 2,048 |" in capsys.readouterr().out
    assert main([*arguments, "--plot", "x.svg"]) == 2
    assert "nothing to draw" in capsys.readouterr().err
