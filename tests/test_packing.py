"""Packed parameters must compute what the Hugging Face modules compute."""

from __future__ import annotations

import dataclasses
import tracemalloc
from functools import lru_cache
from pathlib import Path
from typing import Any

import hf_tiny
import numpy as np
import pytest
import torch

from weavejax.models import ModelConfig, load_config, operator_sequence, preset_config, preset_names
from weavejax.models.mxfp4 import dequantize_mxfp4
from weavejax.models.packing import (
    check_checkpoint,
    checkpoint_tensors,
    iter_params,
    operator_params,
)
from weavejax.models.safetensors_source import SafetensorsSource
from weavejax.models.weights import ArraySource, CheckpointError


@dataclasses.dataclass(frozen=True)
class Case:
    model: Any
    config: ModelConfig
    source: SafetensorsSource


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("checkpoints")

    @lru_cache
    def case(family: str) -> Case:
        model = hf_tiny.write_hf_checkpoint(family, root / family)
        return Case(model, load_config(root / family), SafetensorsSource(root / family))

    return case


def inputs(size: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((5, size), np.float32)


def torch_out(module: Any, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return module(torch.from_numpy(x)).numpy()


def operators(case: Case, kind: str, ways: int = 1) -> Any:
    """Each operator of ``kind`` with its packed parameters and the matching HF layer."""
    for op in operator_sequence(case.config, ways):
        if op.kind == kind:
            params = operator_params(op, case.config, case.source, heads_ways=ways)
            yield op, params, case.model.model.layers[op.layer]


@pytest.mark.parametrize("family", hf_tiny.FAMILIES)
def test_every_operator_has_its_declared_parameters(cases: Any, family: str) -> None:
    case = cases(family)
    check_checkpoint(case.config, case.source)
    for ways in (1, 2, 4):
        for op in operator_sequence(case.config, ways):
            params = operator_params(
                op, case.config, case.source, heads_ways=ways, dtype="bfloat16"
            )
            assert {name: array.shape for name, array in params.items()} == {
                param.name: param.shape for param in op.params
            }
            assert all(array.dtype.name == "bfloat16" for array in params.values())
            assert all(array.flags.c_contiguous for array in params.values())


@pytest.mark.parametrize("family", hf_tiny.FAMILIES)
def test_all_weights_arrive_once(cases: Any, family: str) -> None:
    """The packed model holds exactly the checkpoint's numbers: none lost, none twice."""
    case = cases(family)
    packed = [
        array.ravel()
        for op in operator_sequence(case.config)
        for name, array in operator_params(op, case.config, case.source).items()
        if not (name == "unembed" and case.config.tie_embeddings)
    ]
    stored = [parameter.detach().numpy().ravel() for parameter in case.model.parameters()]
    packed_all, stored_all = np.sort(np.concatenate(packed)), np.sort(np.concatenate(stored))
    np.testing.assert_array_equal(packed_all, stored_all)


# Qwen3-Next has four linear-attention key heads here, so no more than four ranks.
@pytest.mark.parametrize(
    ("family", "ways"),
    [
        (family, ways)
        for family in hf_tiny.FAMILIES
        for ways in (1, 2, 4, 8)
        if (family, ways) != ("qwen3_next", 8)
    ],
)
def test_qkv_groups(cases: Any, family: str, ways: int) -> None:
    case = cases(family)
    config = case.config
    heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
    gates = 2 if config.attention_gate else 1
    x = inputs(config.hidden_size)
    for op, params, layer in operators(case, "attn_in", ways):
        if op.layer_kind.attention == "linear":
            continue
        out = np.einsum("bh,hgpd->bgpd", x, params["qkv"])
        if config.qkv_bias:
            out = out + params["qkv_bias"]
        groups = out.shape[1]
        per_group = heads // groups
        q = torch_out(layer.self_attn.q_proj, x).reshape(-1, heads, gates, width)
        packed_q = out[:, :, :per_group].reshape(-1, heads, width)
        np.testing.assert_allclose(packed_q, q[:, :, 0], atol=1e-5)
        if config.attention_gate:
            packed_gate = out[:, :, per_group : 2 * per_group].reshape(-1, heads, width)
            np.testing.assert_allclose(packed_gate, q[:, :, 1], atol=1e-5)
        for place, module in ((-2, layer.self_attn.k_proj), (-1, layer.self_attn.v_proj)):
            want = torch_out(module, x).reshape(-1, kv_heads, width)
            # Query head h attends to key/value head h * kv_heads // heads: so must its group.
            owner = [group * kv_heads // groups for group in range(groups)]
            np.testing.assert_allclose(out[:, :, place], want[:, owner], atol=1e-5)


@pytest.mark.parametrize("ways", [1, 4])
@pytest.mark.parametrize("family", hf_tiny.FAMILIES)
def test_output_projection(cases: Any, family: str, ways: int) -> None:
    case = cases(family)
    for op, params, layer in operators(case, "attn_out", ways):
        linear = op.layer_kind.attention == "linear"
        module = layer.linear_attn.out_proj if linear else layer.self_attn.o_proj
        x = inputs(module.in_features)
        out = np.einsum("bi,ih->bh", x, params["o"].reshape(module.in_features, -1))
        np.testing.assert_allclose(
            out + params.get("o_bias", np.float32(0)), torch_out(module, x), atol=1e-5
        )


def test_delta_net_projections(cases: Any) -> None:
    case = cases("qwen3_next")
    linear = case.config.linear
    keys, dk, dv = linear.num_key_heads, linear.key_head_dim, linear.value_head_dim
    ratio = linear.num_value_heads // keys
    x = inputs(case.config.hidden_size)
    seen = 0
    for op, params, layer in operators(case, "attn_in"):
        if op.layer_kind.attention != "linear":
            continue
        seen += 1
        net = layer.linear_attn
        with torch.no_grad():
            tensor = torch.from_numpy(x)[None]
            q, k, v, z, b, a = (
                part[0].numpy().reshape(len(x), keys, -1)
                for part in net.fix_query_key_value_ordering(
                    net.in_proj_qkvz(tensor), net.in_proj_ba(tensor)
                )
            )
        out = np.einsum("bh,hkw->bkw", x, params["in_proj"])
        cuts = np.cumsum([dk, dk, ratio * dv, ratio * dv, ratio])
        for got, want in zip(np.split(out, cuts, axis=2), (q, k, v, z, b, a), strict=True):
            np.testing.assert_allclose(got, want, atol=1e-5)
    assert seen == 3


def test_delta_net_core_parameters(cases: Any) -> None:
    """Convolved channels keep their kernel; decays stay with their value head."""
    case = cases("qwen3_next")
    linear = case.config.linear
    keys, dk = linear.num_key_heads, linear.key_head_dim
    for op, params, layer in operators(case, "attn_core"):
        if op.layer_kind.attention != "linear":
            continue
        kernel = layer.linear_attn.conv1d.weight.detach().numpy()[:, 0]
        for head in range(keys):
            mixed = params["conv"][head]
            np.testing.assert_array_equal(mixed[:dk], kernel[head * dk : (head + 1) * dk])
            first = keys * dk + head * dk
            np.testing.assert_array_equal(mixed[dk : 2 * dk], kernel[first : first + dk])
            size = len(mixed) - 2 * dk
            first = 2 * keys * dk + head * size
            np.testing.assert_array_equal(mixed[2 * dk :], kernel[first : first + size])
        for name, stored in (("a_log", "A_log"), ("dt_bias", "dt_bias")):
            want = getattr(layer.linear_attn, stored).detach().numpy().reshape(keys, -1)
            np.testing.assert_array_equal(params[name], want)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_dense_projections(cases: Any, family: str) -> None:
    case = cases(family)
    x = inputs(case.config.hidden_size)
    for _, params, layer in operators(case, "ffn"):
        _check_mlp(params, "", layer.mlp, x)


def _check_mlp(params: dict[str, np.ndarray], prefix: str, mlp: Any, x: np.ndarray) -> None:
    out = np.einsum("bh,hpi->bpi", x, params[f"{prefix}gate_up"])
    np.testing.assert_allclose(out[:, 0], torch_out(mlp.gate_proj, x), atol=1e-5)
    np.testing.assert_allclose(out[:, 1], torch_out(mlp.up_proj, x), atol=1e-5)
    down = params[f"{prefix}down"]
    y = inputs(len(down))
    np.testing.assert_allclose(y @ down, torch_out(mlp.down_proj, y), atol=1e-5)


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen3_next"])
def test_qwen_experts(cases: Any, family: str) -> None:
    case = cases(family)
    x = inputs(case.config.hidden_size)
    for _, params, layer in operators(case, "ffn"):
        block = layer.mlp
        gate_up = block.experts.gate_up_proj.detach().numpy()  # [E, gate then up, hidden]
        want = np.einsum("bh,eih->bei", x, gate_up)
        got = np.einsum("bh,ehpi->bepi", x, params["experts_gate_up"])
        np.testing.assert_allclose(got.reshape(want.shape), want, atol=1e-5)
        down = block.experts.down_proj.detach().numpy().swapaxes(1, 2)
        np.testing.assert_array_equal(params["experts_down"], down)
        router = block.gate.weight.detach().numpy()
        np.testing.assert_allclose(x @ params["router"], x @ router.T, atol=1e-5)
        if family == "qwen3_next":
            _check_mlp(params, "shared_", block.shared_expert, x)
            want = torch_out(block.shared_expert_gate, x)
            np.testing.assert_allclose(x @ params["shared_gate"], want, atol=1e-5)


def test_gpt_oss_experts(cases: Any) -> None:
    """One expert computed from packed parameters equals the module with that expert chosen."""
    case = cases("gpt_oss")
    x = inputs(case.config.hidden_size)
    limit = case.config.swiglu_limit
    for _, params, layer in operators(case, "ffn"):
        for chosen in (0, 5):
            with torch.no_grad():
                index = torch.full((len(x), 1), chosen)
                want = layer.mlp.experts(torch.from_numpy(x), index, torch.ones(len(x), 1))
            both = np.einsum("bh,hpi->bpi", x, params["experts_gate_up"][chosen])
            both = both + params["experts_gate_up_bias"][chosen]
            gate, up = np.minimum(both[:, 0], limit), np.clip(both[:, 1], -limit, limit)
            hidden = (up + 1) * gate / (1 + np.exp(-1.702 * gate))
            got = hidden @ params["experts_down"][chosen] + params["experts_down_bias"][chosen]
            np.testing.assert_allclose(got, want.numpy(), atol=1e-4)
        router = layer.mlp.router
        want = torch.nn.functional.linear(torch.from_numpy(x), router.weight, router.bias)
        got = x @ params["router"] + params["router_bias"]
        np.testing.assert_allclose(got, want.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("family", hf_tiny.FAMILIES)
def test_norms_sit_where_the_layer_has_them(cases: Any, family: str) -> None:
    case = cases(family)
    post = case.config.post_norms
    names = {
        "attn_in": {"norm": "input_layernorm"},
        "attn_out": {"post_norm": "post_attention_layernorm"} if post else {},
        "ffn": {
            "norm": "pre_feedforward_layernorm" if post else "post_attention_layernorm",
            **({"post_norm": "post_feedforward_layernorm"} if post else {}),
        },
    }
    for kind, norms in names.items():
        for op, params, layer in operators(case, kind):
            assert norms.keys() == {name for name in params if name in ("norm", "post_norm")}
            for name, module in norms.items():
                want = getattr(layer, module).weight.detach().numpy()
                np.testing.assert_array_equal(params[name], want, err_msg=f"{op.name} {name}")


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_head_is_tied_only_where_the_config_says(cases: Any, family: str) -> None:
    case = cases(family)
    embed, *_, head = operator_sequence(case.config)
    embedding = operator_params(embed, case.config, case.source)["embedding"]
    unembed = operator_params(head, case.config, case.source)["unembed"]
    assert np.array_equal(embedding, unembed) == case.config.tie_embeddings
    np.testing.assert_array_equal(unembed, case.model.lm_head.weight.detach().numpy())


def test_fused_experts_pack_like_separate_ones(cases: Any) -> None:
    case = cases("qwen3_moe")
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


def test_mxfp4_checkpoint_packs_like_its_dequantized_twin(cases: Any) -> None:
    case = cases("gpt_oss")
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


def test_missing_tensor_is_named(cases: Any) -> None:
    case = cases("qwen3")
    arrays = {name: case.source.read(name, "float32") for name in case.source.names()}
    del arrays["model.layers.1.self_attn.k_norm.weight"]
    with pytest.raises(
        CheckpointError,
        match=r"layers.1.attn_in of a qwen3 model: memory has no tensor "
        r"'model.layers.1.self_attn.k_norm.weight'; layer 1 has input_layernorm.weight, mlp",
    ):
        check_checkpoint(case.config, ArraySource(arrays))


def test_wrong_shape_is_named(cases: Any) -> None:
    case = cases("llama")
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


def test_left_over_tensors_mean_another_architecture(cases: Any) -> None:
    qwen = cases("qwen3")
    as_llama = dataclasses.replace(qwen.config, model_type="llama", qk_norm=False)
    with pytest.raises(
        CheckpointError,
        match=r"a llama model of 3 layers uses every tensor of its checkpoint, but 6 are left "
        r"over, the first is 'model.layers.0.self_attn.k_norm.weight' \[16\]",
    ):
        check_checkpoint(as_llama, qwen.source)


def test_fewer_layers_than_the_checkpoint(cases: Any) -> None:
    case = cases("llama")
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
