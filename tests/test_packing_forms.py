"""Other forms of the same weights, checkpoints that do not fit, and memory while loading."""

from __future__ import annotations

import dataclasses
import tracemalloc
from pathlib import Path

import hf_tiny
import numpy as np
import pytest
import torch
from packing_cases import case_of

from weavejax.models import load_config, operator_sequence, preset_config, preset_names
from weavejax.models.mxfp4 import dequantize_mxfp4
from weavejax.models.packing import (
    check_checkpoint,
    checkpoint_tensors,
    iter_params,
    operator_params,
)
from weavejax.models.safetensors_source import SafetensorsSource
from weavejax.models.weights import ArraySource, CheckpointError


def test_fused_experts_pack_like_separate_ones() -> None:
    case = case_of("qwen3_moe")
    arrays = {name: parameter.detach().numpy() for name, parameter in case.model.named_parameters()}
    assert "model.layers.0.mlp.experts.gate_up_proj" in arrays  # transformers keeps them fused
    fused = ArraySource(arrays)
    check_checkpoint(case.config, fused)
    for op in operator_sequence(case.config):
        want = operator_params(op, case.config, case.source)
        for name, array in iter_params(op, case.config, fused):
            np.testing.assert_array_equal(array, want[name])


def quantize_mxfp4(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes and scales of numbers that MXFP4 holds exactly."""
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    groups = numbers.reshape(*numbers.shape[:-1], -1, 32)
    exponents = np.floor(np.log2(np.abs(groups).max(-1))) - 2
    scaled = groups / 2.0 ** exponents[..., None]
    codes = np.argmin(np.abs(np.abs(scaled)[..., None] - values), axis=-1) + 8 * (scaled < 0)
    pairs = codes.reshape(*codes.shape[:-1], 16, 2).astype(np.uint8)
    return pairs[..., 0] | pairs[..., 1] << 4, (exponents + 127).astype(np.uint8)


def test_mxfp4_checkpoint_packs_like_its_dequantized_twin() -> None:
    case = case_of("gpt_oss")
    rng = np.random.default_rng(0)
    plain = {name: p.detach().numpy() for name, p in case.model.named_parameters()}
    coded = dict(plain)
    for name in list(plain):
        if name.endswith(("gate_up_proj", "down_proj")) and ".experts." in name:
            experts, inner, outer = plain[name].shape
            shape = (experts, outer, inner)
            numbers = rng.choice([-6.0, -1.5, 0.5, 3.0, 4.0], shape)
            numbers *= np.repeat(2.0 ** rng.integers(-9, 3, (experts, outer, inner // 32)), 32, 2)
            numbers = numbers.astype(np.float32)
            blocks, scales = quantize_mxfp4(numbers)
            np.testing.assert_array_equal(dequantize_mxfp4(blocks, scales), numbers)
            plain[name] = numbers.swapaxes(1, 2)
            del coded[name]
            coded |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    check_checkpoint(case.config, ArraySource(coded))
    for op in operator_sequence(case.config):
        want = operator_params(op, case.config, ArraySource(plain))
        got = operator_params(op, case.config, ArraySource(coded))
        for name in want:
            np.testing.assert_array_equal(got[name], want[name])


def test_mxfp4_agrees_with_transformers() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (2, 6, 3, 16), np.uint8)
    scales = rng.integers(110, 140, (2, 6, 3), np.uint8)
    want = convert_moe_packed_tensors(
        torch.from_numpy(blocks), torch.from_numpy(scales), dtype=torch.float32
    )
    got = dequantize_mxfp4(blocks, scales).swapaxes(1, 2)  # they return [in, out]
    np.testing.assert_array_equal(got, want.numpy())


def test_mxfp4_shapes() -> None:
    with pytest.raises(ValueError, match=r"16 bytes of codes per scale, got codes \[4, 8\]"):
        dequantize_mxfp4(np.zeros((4, 8), np.uint8), np.zeros(4, np.uint8))


@pytest.mark.parametrize("name", preset_names())
def test_preset_tensors_hold_all_parameters(name: str) -> None:
    """The checkpoint a preset expects has as many numbers as the operators declare."""
    config = preset_config(name)
    stored = sum(int(np.prod(shape)) for shape in checkpoint_tensors(config).values())
    declared = sum(
        param.elements
        for op in operator_sequence(config)
        for param in op.params
        if param.shared is None
    )
    assert stored == declared


def test_missing_tensor_is_named() -> None:
    case = case_of("qwen3")
    arrays = {name: case.source.read(name, "float32") for name in case.source.names()}
    del arrays["model.layers.1.self_attn.k_norm.weight"]
    with pytest.raises(
        CheckpointError,
        match=r"layers.1.attn_in of a qwen3 model: memory has no tensor "
        r"'model.layers.1.self_attn.k_norm.weight'; layer 1 has input_layernorm.weight, mlp",
    ):
        check_checkpoint(case.config, ArraySource(arrays))


def test_wrong_shape_is_named() -> None:
    case = case_of("llama")
    config = dataclasses.replace(case.config, intermediate_size=128)
    with pytest.raises(
        CheckpointError,
        match=r"layers.0.ffn of a llama model: tensor 'model.layers.0.mlp.gate_proj.weight' must "
        r"have shape \[128, 64\] by the config, got \[96, 64\] in ",
    ):
        check_checkpoint(config, case.source)
    op = operator_sequence(config)[4]
    with pytest.raises(CheckpointError, match=r"\[128, 64\] by the config, got \[96, 64\]"):
        operator_params(op, config, case.source)


def test_left_over_tensors_mean_another_architecture() -> None:
    qwen = case_of("qwen3")
    as_llama = dataclasses.replace(qwen.config, model_type="llama", qk_norm=False)
    with pytest.raises(
        CheckpointError,
        match=r"a llama model of 3 layers uses every tensor of its checkpoint, but 6 are left "
        r"over, the first is 'model.layers.0.self_attn.k_norm.weight' \[16\]",
    ):
        check_checkpoint(as_llama, qwen.source)


def test_fewer_layers_than_the_checkpoint() -> None:
    case = case_of("llama")
    config = dataclasses.replace(case.config, layer_kinds=case.config.layer_kinds[:2])
    with pytest.raises(CheckpointError, match=r"first is 'model.layers.2.input_layernorm.weight'"):
        check_checkpoint(config, case.source)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gpt_oss"])
def test_loading_peaks_near_one_parameter(tmp_path: Path, family: str) -> None:
    """Reading a whole model holds one packed parameter and one tensor of the checkpoint, which for
    the embedding, here and in most models the largest, are the same array."""
    hf_tiny.write_hf_checkpoint(family, tmp_path, hidden_size=256, vocab_size=4096)
    config, source = load_config(tmp_path), SafetensorsSource(tmp_path)
    largest = max(p.elements for op in operator_sequence(config) for p in op.params) * 4
    total = sum(p.elements for op in operator_sequence(config) for p in op.params) * 4
    tracemalloc.start()
    for op in operator_sequence(config):
        for _, array in iter_params(op, config, source):
            del array
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.2 * largest < 0.6 * total
