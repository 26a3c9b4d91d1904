"""Converted checkpoints: the same parameters and outputs, read operator by operator."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf_tiny
import hf_tiny
import jax
import numpy as np
import pytest
from serving import group, make_plan, random_prompts

from weavejax.cli.main import main
from weavejax.models import operator_sequence
from weavejax.models.conversion import convert_model
from weavejax.models.loading import Model, load_model
from weavejax.models.weights import CheckpointError
from weavejax.plan import Template
from weavejax.request import SamplingParams
from weavejax.runtime.memory import load_weights
from weavejax.serve import serve

PRESETS = ("gemma-3-1b", "qwen3-next-80b-a3b", "gpt-oss-20b")


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Model, Path]]:
    """Tied embeddings and one key/value head; gates and delta nets; biases, sinks and experts."""
    found = {}
    for preset in PRESETS:
        model = load_model(preset, random_weights=True, scale="tiny")
        found[preset] = (model, convert_model(model, tmp_path_factory.mktemp("out") / preset))
    return found


@pytest.mark.parametrize("ways", [1, 4, 8])
@pytest.mark.parametrize("preset", PRESETS)
def test_parameters_are_the_same_for_any_ranks(
    preset: str, ways: int, converted: dict[str, tuple[Model, Path]]
) -> None:
    """Eight ranks are more than any of them has key/value heads."""
    model, directory = converted[preset]
    again = load_model(directory)
    assert again.config == model.config and again.tokenizer is None
    sequence = operator_sequence(model.config, ways)
    for op in (*sequence[:21], sequence[-1]):
        ours = again.operator_params(op, heads_ways=ways)
        theirs = model.operator_params(op, heads_ways=ways)
        assert list(ours) == list(theirs)
        for name, array in theirs.items():
            np.testing.assert_array_equal(ours[name], array, err_msg=f"{op.name} {name}")


@pytest.mark.slow
def test_outputs_are_the_same(converted: dict[str, tuple[Model, Path]]) -> None:
    model, directory = converted["gpt-oss-20b"]
    plan = make_plan(model, Template(cuts=(3,)), group(2, tensor_parallel=4), group(2), context=32)
    outputs = []
    for each in (model, load_model(directory)):
        with serve(each, plan, prefill_chunks=(8,)) as engine:
            prompts = random_prompts(model, (5, 11))
            outputs.append(engine.generate(prompts, SamplingParams(max_tokens=8)))
    assert [o.token_ids for o in outputs[0]] == [o.token_ids for o in outputs[1]]


def test_a_group_reads_its_operators_only(
    converted: dict[str, tuple[Model, Path]], tmp_path: Path
) -> None:
    """With every feed-forward's data gone, the attention group still loads."""
    model, directory = converted["gpt-oss-20b"]
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    for path in copy.glob("operators/*.ffn"):
        shutil.rmtree(path)
        path.mkdir()
    broken = load_model(copy)
    attention = [op.index for op in operator_sequence(model.config) if op.kind.startswith("attn")]
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]).reshape(1, 2), ("replica", "model"))
    cut = group(2, tensor_parallel=2)
    weights = load_weights(broken, cut, mesh, attention, "float32")
    whole = load_weights(model, cut, mesh, attention, "float32")
    jax.tree.map(np.testing.assert_array_equal, weights, whole)
    with pytest.raises(
        CheckpointError, match=r"parameter 'norm' of operator 'layers.0.ffn' cannot be read"
    ):
        broken.operator_params(operator_sequence(model.config)[4])


def test_dtype_of_the_stored_weights(tmp_path: Path) -> None:
    model = load_model("qwen3-0.6b", random_weights=True, scale="tiny")
    op = operator_sequence(model.config)[1]
    directory = convert_model(model, tmp_path / "half", dtype="bfloat16")
    stored = load_model(directory).operator_params(op, dtype="bfloat16")["qkv"]
    np.testing.assert_array_equal(stored, model.operator_params(op, dtype="bfloat16")["qkv"])
    wide = load_model(directory).operator_params(op)["qkv"]
    assert wide.dtype == np.float32
    np.testing.assert_array_equal(wide, stored.astype(np.float32))


def test_tokenizer_and_end_tokens_come_along(tmp_path: Path) -> None:
    theirs = hf_tiny.hf_model("llama", rope_parameters=dict(rope_type="default", rope_theta=1e4))
    model = load_model(gguf_tiny.write_gguf(tmp_path / "tiny.gguf", theirs))
    again = load_model(convert_model(model, tmp_path / "out"))
    assert model.tokenizer is not None and again.tokenizer is not None
    assert again.eos_token_ids == model.eos_token_ids
    assert again.tokenizer.chat_template == model.tokenizer.chat_template
    assert again.tokenizer.special_tokens == model.tokenizer.special_tokens
    text = "Hello, wörld: 123\n  x"
    assert again.tokenizer.encode(text) == model.tokenizer.encode(text)
    chat = [{"role": "user", "content": "hi"}]
    assert again.tokenizer.encode_chat(chat) == model.tokenizer.encode_chat(chat)


def test_what_cannot_be_read_says_why(
    converted: dict[str, tuple[Model, Path]], tmp_path: Path
) -> None:
    _, directory = converted["gemma-3-1b"]
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    info = json.loads((copy / "weavejax.json").read_text())

    def rewrite(**changes: object) -> None:
        (copy / "weavejax.json").write_text(json.dumps({**info, **changes}))

    rewrite(format="weavejax.checkpoint/0")
    with pytest.raises(
        CheckpointError, match="must have \"format\": 'weavejax.checkpoint/2', got 'weavejax.check"
    ):
        load_model(copy)
    rewrite(config={**info["config"], "intermediate_size": 48})
    model = load_model(copy)
    with pytest.raises(
        CheckpointError,
        match=r"'gate_up' of operator 'layers.0.ffn' must have shape \[2, 48, 64\] by the config, "
        r"got \[2, 96, 64\]",
    ):
        model.operator_params(operator_sequence(model.config)[4])
    rewrite()
    shutil.rmtree(copy / "operators" / "layers.3.ffn")
    with pytest.raises(CheckpointError, match="lacks the weights of operator 'layers.3.ffn'"):
        load_model(copy)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    model = load_model("qwen3-0.6b", random_weights=True, scale="tiny")
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="must not exist or be an empty directory"):
        convert_model(model, tmp_path)


def test_random_weights_of_a_converted_model(converted: dict[str, tuple[Model, Path]]) -> None:
    model, directory = converted["gemma-3-1b"]
    assert load_model(directory, random_weights=True).config == model.config


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ["convert", "qwen3-0.6b", str(out), "--random-weights", "--dtype", "bfloat16"]
    assert main(arguments) == 0
    assert f"{out}: qwen3-0.6b-tiny in bfloat16, " in capsys.readouterr().out
    assert load_model(out).config.num_layers == 2
    assert main(arguments) == 2
    assert "must not exist or be an empty directory" in capsys.readouterr().err
