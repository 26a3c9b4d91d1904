"""Packed parameters must compute what the Hugging Face modules compute."""

from __future__ import annotations

from typing import Any

import hf_tiny
import numpy as np
import pytest
import torch
from packing_cases import case_of, inputs, operators, torch_out

from weavejax.models import operator_sequence
from weavejax.models.packing import check_checkpoint, operator_params


@pytest.mark.parametrize("family", hf_tiny.FAMILIES)
def test_every_operator_has_its_declared_parameters(family: str) -> None:
    case = case_of(family)
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
def test_all_weights_arrive_once(family: str) -> None:
    """The packed model holds exactly the checkpoint's numbers: none lost, none twice."""
    case = case_of(family)
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
def test_qkv_groups(family: str, ways: int) -> None:
    case = case_of(family)
    config = case.config
    heads, kv_heads, width = config.num_heads, config.num_kv_heads, config.head_dim
    gates = 2 if config.attention_gate else 1
    x = inputs(config.hidden_size)
    for op, params, layer in operators(case, "attn_in", ways):
        if op.layer_kind.attention == "linear":
            continue
        out = np.einsum("bh,gpdh->bgpd", x, params["qkv"])
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
def test_output_projection(family: str, ways: int) -> None:
    case = case_of(family)
    for op, params, layer in operators(case, "attn_out", ways):
        linear = op.layer_kind.attention == "linear"
        module = layer.linear_attn.out_proj if linear else layer.self_attn.o_proj
        x = inputs(module.in_features)
        out = x @ params["o"].reshape(-1, module.in_features).T
        np.testing.assert_allclose(
            out + params.get("o_bias", np.float32(0)), torch_out(module, x), atol=1e-5
        )


def test_delta_net_projections() -> None:
    case = case_of("qwen3_next")
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
        out = np.einsum("bh,kwh->bkw", x, params["in_proj"])
        cuts = np.cumsum([dk, dk, ratio * dv, ratio * dv, ratio])
        for got, want in zip(np.split(out, cuts, axis=2), (q, k, v, z, b, a), strict=True):
            np.testing.assert_allclose(got, want, atol=1e-5)
    assert seen == 3


def test_delta_net_core_parameters() -> None:
    """Convolved channels keep their kernel; decays stay with their value head."""
    case = case_of("qwen3_next")
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
def test_dense_projections(family: str) -> None:
    case = case_of(family)
    x = inputs(case.config.hidden_size)
    for _, params, layer in operators(case, "ffn"):
        _check_mlp(params, "", layer.mlp, x)


def _check_mlp(params: dict[str, np.ndarray], prefix: str, mlp: Any, x: np.ndarray) -> None:
    out = np.einsum("bh,pih->bpi", x, params[f"{prefix}gate_up"])
    np.testing.assert_allclose(out[:, 0], torch_out(mlp.gate_proj, x), atol=1e-5)
    np.testing.assert_allclose(out[:, 1], torch_out(mlp.up_proj, x), atol=1e-5)
    down = params[f"{prefix}down"]
    y = inputs(down.shape[1])
    np.testing.assert_allclose(y @ down.T, torch_out(mlp.down_proj, y), atol=1e-5)


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen3_next"])
def test_qwen_experts(family: str) -> None:
    case = case_of(family)
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
        np.testing.assert_array_equal(params["router"], router)
        if family == "qwen3_next":
            _check_mlp(params, "shared_", block.shared_expert, x)
            want = torch_out(block.shared_expert_gate, x)
            np.testing.assert_allclose(x @ params["shared_gate"].T, want, atol=1e-5)


def test_gpt_oss_experts() -> None:
    """One expert computed from packed parameters equals the module with that expert chosen."""
    case = case_of("gpt_oss")
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
        got = x @ params["router"].T + params["router_bias"]
        np.testing.assert_allclose(got, want.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("family", hf_tiny.FAMILIES)
def test_norms_sit_where_the_layer_has_them(family: str) -> None:
    case = case_of(family)
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
def test_head_is_tied_only_where_the_config_says(family: str) -> None:
    case = case_of(family)
    embed, *_, head = operator_sequence(case.config)
    embedding = operator_params(embed, case.config, case.source)["embedding"]
    unembed = operator_params(head, case.config, case.source)["unembed"]
    assert np.array_equal(embedding, unembed) == case.config.tie_embeddings
    np.testing.assert_array_equal(unembed, case.model.lm_head.weight.detach().numpy())
