"""Weight sources: safetensors files of every kind, random weights, tiny configs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hf_tiny
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from weavejax.models import operator_sequence, preset_config, preset_names
from weavejax.models.packing import check_checkpoint, checkpoint_tensors, operator_params
from weavejax.models.random_source import RandomSource
from weavejax.models.safetensors_source import SafetensorsSource
from weavejax.models.tiny import tiny_config
from weavejax.models.weights import ArraySource, CheckpointError, as_dtype, text_name

RNG = np.random.default_rng(0)


def write(directory: Path, arrays: dict[str, np.ndarray], file: str = "model.safetensors") -> Path:
    save_file(arrays, directory / file)
    return directory / file


@pytest.mark.parametrize("stored", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("wanted", ["float32", "bfloat16"])
def test_reads_what_was_stored(tmp_path: Path, stored: Any, wanted: str) -> None:
    array = RNG.standard_normal((6, 5)).astype(stored)
    write(tmp_path, {"model.norm.weight": array, "lm_head.weight": array[:2] * stored(2)})
    source = SafetensorsSource(tmp_path)
    assert source.names() == {"model.norm.weight", "lm_head.weight"}
    assert source.shape("model.norm.weight") == (6, 5)
    want = array.astype(as_dtype(wanted))
    got = source.read("model.norm.weight", as_dtype(wanted))
    assert got.dtype == want.dtype and type(got) is np.ndarray and got.flags.writeable
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(source.read("model.norm.weight", as_dtype(wanted), 3), want[3])


def test_scalars_and_empty_tensors(tmp_path: Path) -> None:
    write(tmp_path, {"model.norm.weight": np.array(2.5, np.float32)})
    source = SafetensorsSource(tmp_path)
    assert source.shape("model.norm.weight") == ()
    assert source.read("model.norm.weight", np.float32) == 2.5


def test_shards_with_an_index(tmp_path: Path) -> None:
    model = hf_tiny.write_hf_checkpoint("qwen3", tmp_path, max_shard_size="80KB")
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 2
    source = SafetensorsSource(tmp_path)
    for name, parameter in model.named_parameters():
        np.testing.assert_array_equal(source.read(name, np.float32), parameter.detach().numpy())
    shards[1].unlink()
    with pytest.raises(FileNotFoundError, match=rf"of which 1 are not there: {shards[1].name}"):
        SafetensorsSource(tmp_path)


@pytest.mark.parametrize(
    ("stored", "canonical"),
    [
        ("model.layers.3.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight"),
        ("language_model.model.layers.3.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight"),
        ("model.language_model.layers.3.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight"),
        ("layers.3.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight"),
        ("language_model.lm_head.weight", "lm_head.weight"),
        ("lm_head.weight", "lm_head.weight"),
        ("embed_tokens.weight", "model.embed_tokens.weight"),
        ("model.language_model.norm.weight", "model.norm.weight"),
        ("vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight", None),
        ("model.vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight", None),
        ("model.multi_modal_projector.mm_soft_emb_norm.weight", None),
        ("mtp.layers.0.mlp.up_proj.weight", None),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", None),
    ],
)
def test_text_names(stored: str, canonical: str | None) -> None:
    assert text_name(stored) == canonical


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_multimodal_checkpoint_gives_its_text_part(tmp_path: Path, prefix: str) -> None:
    array = np.ones((2, 2), np.float32)
    write(tmp_path, {f"{prefix}norm.weight": array, "vision_tower.x.weight": array})
    assert SafetensorsSource(tmp_path).names() == {"model.norm.weight"}


def test_missing_tensor(tmp_path: Path) -> None:
    array = np.ones(2, np.float32)
    write(tmp_path, {"model.layers.0.a.weight": array, "model.layers.0.b.weight": array})
    source = SafetensorsSource(tmp_path)
    with pytest.raises(
        CheckpointError,
        match=rf"{tmp_path} has no tensor 'model.layers.0.c.weight'; layer 0 has a.weight, b.wei",
    ):
        source.read("model.layers.0.c.weight", np.float32)
    with pytest.raises(CheckpointError, match="has no tensor 'lm_head.weight'$"):
        source.shape("lm_head.weight")


def test_truncated_file_names_the_tensor(tmp_path: Path) -> None:
    file = write(tmp_path, {f"model.layers.{i}.w": np.ones(64, np.float32) for i in range(3)})
    whole = file.read_bytes()
    file.write_bytes(whole[:-300])  # the last tensor gone, the one before it cut
    with pytest.raises(
        CheckpointError,
        match=rf"model.safetensors is truncated: tensor 'model.layers.[12].w' should end at byte "
        rf"\d+, the file has {len(whole) - 300}",
    ):
        SafetensorsSource(tmp_path)
    file.write_bytes(whole[:100])
    with pytest.raises(CheckpointError, match="no whole safetensors file: it has 100 bytes"):
        SafetensorsSource(tmp_path)
    file.write_bytes(b"")
    with pytest.raises(CheckpointError, match="no whole safetensors file: it has 0 bytes"):
        SafetensorsSource(tmp_path)
    file.write_bytes((5).to_bytes(8, "little") + b"hello" + bytes(20))
    with pytest.raises(CheckpointError, match="has no safetensors header: "):
        SafetensorsSource(tmp_path)


def test_stored_type_that_is_not_read(tmp_path: Path) -> None:
    header = {"model.norm.weight": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    with pytest.raises(
        CheckpointError, match="tensor 'model.norm.weight' is stored as F8_E4M3; stored types"
    ):
        SafetensorsSource(tmp_path).read("model.norm.weight", np.float32)


def test_no_safetensors(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(
        FileNotFoundError, match=r"no \*.safetensors file, it has pytorch_model.bin; other weight"
    ):
        SafetensorsSource(tmp_path)


def test_dtypes() -> None:
    assert as_dtype("bfloat16") == as_dtype(ml_dtypes.bfloat16) == np.dtype(ml_dtypes.bfloat16)
    with pytest.raises(ValueError, match="must be one of float32, float16, bfloat16, got 'int8'"):
        as_dtype("int8")


def test_array_source() -> None:
    source = ArraySource({"model.norm.weight": np.arange(6.0).reshape(2, 3)})
    np.testing.assert_array_equal(source.read("model.norm.weight", np.float32, 1), [3, 4, 5])
    with pytest.raises(CheckpointError, match="memory has no tensor 'lm_head.weight'"):
        source.read("lm_head.weight", np.float32)


@pytest.mark.parametrize("name", preset_names())
def test_random_weights_of_every_preset(name: str) -> None:
    config = tiny_config(preset_config(name))
    source = RandomSource(config, seed=3)
    check_checkpoint(config, source)
    for op in operator_sequence(config):
        for array in operator_params(op, config, source).values():
            assert np.isfinite(array).all()
            assert array.std() > 0
    other = RandomSource(config, seed=4)
    for tensor in list(checkpoint_tensors(config))[:20]:
        first = source.read(tensor, np.float32)
        np.testing.assert_array_equal(first, RandomSource(config, seed=3).read(tensor, np.float32))
        np.testing.assert_array_equal(first[1], source.read(tensor, np.float32, 1))
        assert not np.array_equal(first, other.read(tensor, np.float32))


def test_random_weights_keep_their_scale() -> None:
    """Projections keep unit variance; zero-centred norms are zero-centred."""
    config = tiny_config(preset_config("gpt-oss-20b"))
    source = RandomSource(config)
    x = RNG.standard_normal((64, config.hidden_size)).astype(np.float32)
    for op in operator_sequence(config):
        params = operator_params(op, config, source)
        for name in ("qkv", "experts_gate_up"):
            if name in params:
                weight = (
                    np.moveaxis(params[name][0], 0, -1)
                    if name == "experts_gate_up"
                    else params[name]
                )
                out = np.tensordot(x, weight, axes=([1], [-1]))
                assert 0.8 < out.std() < 1.25
    gemma = tiny_config(preset_config("gemma-3-1b"))
    norm = RandomSource(gemma).read("model.norm.weight", np.float32)
    assert abs(norm.mean()) < 0.1


@pytest.mark.parametrize("name", preset_names())
def test_tiny_keeps_the_architecture(name: str) -> None:
    config = preset_config(name)
    tiny = tiny_config(config)
    size = len(tiny.layer_kinds)
    assert tiny.layer_kinds == config.layer_kinds[:size] and size <= 16
    assert set(tiny.layer_kinds) == set(config.layer_kinds)
    assert (tiny.num_kv_heads < tiny.num_heads) == (config.num_kv_heads < config.num_heads)
    assert (tiny.num_kv_heads == 1) == (config.num_kv_heads == 1)
    for flag in (
        "model_type qk_norm qkv_bias output_bias post_norms attention_gate attention_sinks "
        "tie_embeddings rope rope_sliding activation swiglu_limit norm_weight_offset"
    ).split():
        assert getattr(tiny, flag) == getattr(config, flag)
    for option in ("moe", "linear", "sliding_window", "embed_scale", "attention_scale"):
        assert (getattr(tiny, option) is None) == (getattr(config, option) is None)
    names = {op: {p.name for p in op.params} for op in operator_sequence(config)[:9]}
    small = {op.name: {p.name for p in op.params} for op in operator_sequence(tiny)}
    assert all(small[op.name] == params for op, params in names.items())


def test_tiny_pattern_is_two_periods_and_the_rest() -> None:
    layers = {name: tiny_config(preset_config(name)).num_layers for name in preset_names()}
    assert layers["gemma-3-27b"] == 2 * 6 + 62 % 6
    assert layers["qwen3-next-80b-a3b"] == 2 * 4
    assert layers["llama-3.1-8b"] == 2
    assert layers["gpt-oss-20b"] == 4
