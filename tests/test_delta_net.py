"""The gated delta net against an obvious loop, and its state against padding and idle rows."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from single_operator import Arrays, Run, compile_operator, make_caches, make_operator, make_step

from weavejax.models import LayerKind, LinearAttentionConfig, ModelConfig
from weavejax.models.delta_net import delta_rule
from weavejax.models.operator import Operator

KEYS, RATIO, DK, DV, KERNEL, LENGTH = 2, 3, 4, 5, 4, 17
MIXED = 2 * DK + RATIO * DV
CONFIG = ModelConfig(
    name="delta",
    model_type="qwen3_next",
    vocab_size=8,
    hidden_size=16,
    layer_kinds=(LayerKind(attention="linear"),),
    num_heads=2,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=8,
    max_position=64,
    linear=LinearAttentionConfig(
        num_key_heads=KEYS,
        num_value_heads=KEYS * RATIO,
        key_head_dim=DK,
        value_head_dim=DV,
        conv_kernel=KERNEL,
    ),
)


def sequences(rows: int, length: int = LENGTH) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "qkv": random.standard_normal((rows, length, KEYS, MIXED), np.float32),
        "ba": random.standard_normal((rows, length, KEYS, 2 * RATIO), np.float32),
    }


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.sum(x * x) + 1e-6)


def reference(tensors: dict[str, np.ndarray], params: Arrays) -> np.ndarray:
    """Row by row, value head by value head, token by token, in float64."""
    qkv, ba = (tensors[name].astype(np.float64) for name in ("qkv", "ba"))
    conv, a_log, dt_bias = (np.asarray(params[n], np.float64) for n in ("conv", "a_log", "dt_bias"))
    rows, length = qkv.shape[:2]
    out = np.zeros((rows, length, KEYS, RATIO * DV))
    for row, key, value in np.ndindex(rows, KEYS, RATIO):
        memory = np.zeros((DK, DV))
        for at in range(length):
            mixed = np.zeros(MIXED)
            for tap in range(KERNEL):
                source = at - (KERNEL - 1) + tap
                if source >= 0:
                    mixed += qkv[row, source, key] * conv[key, :, tap]
            mixed = mixed * sigmoid(mixed)
            q, k = unit(mixed[:DK]) / np.sqrt(DK), unit(mixed[DK : 2 * DK])
            v = mixed[2 * DK + value * DV : 2 * DK + (value + 1) * DV]
            beta = sigmoid(ba[row, at, key, value])
            drift = np.log1p(np.exp(ba[row, at, key, RATIO + value] + dt_bias[key, value]))
            memory = memory * np.exp(-np.exp(a_log[key, value]) * drift)
            memory = memory + np.outer(k, beta * (v - k @ memory))
            out[row, at, key, value * DV : (value + 1) * DV] = q @ memory
    return out


def through_state(
    core: Run, tensors: dict[str, np.ndarray], chunks: list[int], caches: Arrays, pad: int = 0
) -> tuple[np.ndarray, Arrays]:
    """All rows in step, ``pad`` tokens of padding after each chunk that is no single token."""
    rows = len(tensors["qkv"])
    out, start = [], 0
    for size in chunks:
        extra = pad if size > 1 else 0
        step = make_step([start] * rows, [size] * rows, size + extra, context=64)
        widths = ((0, 0), (0, extra), (0, 0), (0, 0))
        padded = {
            name: jnp.asarray(np.pad(a[:, start : start + size], widths, constant_values=9.0))
            for name, a in tensors.items()
        }
        produced, caches = core(padded, caches, step)
        out.append(np.asarray(produced["attn"])[:, :size])
        start += size
    return np.concatenate(out, axis=1), caches


@dataclass(frozen=True)
class Core:
    operator: Operator
    params: Arrays
    run: Run


@pytest.fixture(scope="module")
def core() -> Core:
    operator, params = make_operator(CONFIG, "layers.0.attn_core")
    return Core(operator, params, compile_operator(operator))


@pytest.mark.parametrize("chunks", [[1] * LENGTH, [LENGTH], [2, 3, 1, 4, 7], [1, 16]], ids=str)
def test_recurrence_equals_reference(core: Core, chunks: list[int]) -> None:
    """Chunks shorter and longer than the convolution; a used slot starts from nothing."""
    tensors = sequences(rows=2)
    caches = make_caches(core.operator, 2, 64, fill=30.0)
    out, _ = through_state(core.run, tensors, chunks, caches, pad=3)
    np.testing.assert_allclose(out, reference(tensors, core.params), atol=2e-5)


def test_any_cut_of_a_prompt_leaves_the_same_state(core: Core) -> None:
    @settings(max_examples=10)
    @given(chunks=st.lists(st.sampled_from([1, 2, 3, 5]), min_size=1, max_size=5))
    def check(chunks: list[int]) -> None:
        tensors = sequences(rows=1, length=sum(chunks))
        caches = make_caches(core.operator, 1, 64)
        out, state = through_state(core.run, tensors, chunks, caches)
        each, single = through_state(core.run, tensors, [1] * sum(chunks), caches)
        np.testing.assert_allclose(out, each, atol=1e-5)
        for name, value in state.items():
            np.testing.assert_allclose(value, single[name], atol=1e-5)

    check()


@pytest.mark.parametrize("tokens", [1, 6])
def test_idle_rows_change_no_state(core: Core, tokens: int) -> None:
    """Idle at position 0, where a request would begin, and later; slots of others too."""
    operator = core.operator
    tensors = {name: jnp.asarray(a) for name, a in sequences(3, tokens).items()}
    before = make_caches(operator, 5, 64, fill=0.5)
    step = make_step([4, 0, 9], [tokens, 0, 0], tokens, context=64, slots=[3, 1, 4])
    _, after = core.run(tensors, before, step)
    for name, cache in before.items():
        for slot in range(5):
            same = np.array_equal(np.asarray(after[name])[slot], np.asarray(cache)[slot])
            assert same == (slot != 3), (name, slot)


def test_idle_rows_of_a_decode_change_no_state(core: Core) -> None:
    operator = core.operator
    tensors = {name: jnp.asarray(a) for name, a in sequences(3, 1).items()}
    before = make_caches(operator, 3, 64, fill=0.5)
    _, after = core.run(tensors, before, make_step([0, 5, 7], [0, 0, 1], 1, context=64))
    for name, cache in before.items():
        np.testing.assert_array_equal(np.asarray(after[name])[:2], np.asarray(cache)[:2])
        assert not np.array_equal(np.asarray(after[name])[2], np.asarray(cache)[2])


def test_padding_changes_no_state(core: Core) -> None:
    """Prompts of different lengths in one chunk leave what each would alone."""
    operator = core.operator
    tensors = sequences(3, 6)
    caches = make_caches(operator, 3, 64)
    lengths = [6, 2, 1]
    step = make_step([0, 0, 0], lengths, 6, context=64)
    _, together = core.run({n: jnp.asarray(a) for n, a in tensors.items()}, caches, step)
    for row, length in enumerate(lengths):
        alone = {name: array[row : row + 1, :length] for name, array in tensors.items()}
        _, state = through_state(core.run, alone, [length], make_caches(operator, 1, 64))
        for name, value in state.items():
            np.testing.assert_allclose(together[name][row], value[0], atol=1e-6)


def test_a_slot_used_again_starts_from_nothing(core: Core) -> None:
    operator = core.operator
    tensors = sequences(1, 5)
    clean, _ = through_state(core.run, tensors, [5], make_caches(operator, 1, 64))
    _, used = through_state(core.run, sequences(1, 9), [9], make_caches(operator, 1, 64))
    again, _ = through_state(core.run, tensors, [5], used)
    np.testing.assert_array_equal(again, clean)
    # The same state is read where a request goes on.
    step = make_step([9], [5], 5, context=64)
    further, _ = core.run({n: jnp.asarray(a) for n, a in tensors.items()}, used, step)
    assert np.abs(np.asarray(further["attn"]) - clean).max() > 1e-3


def test_state_stays_in_float32(core: Core) -> None:
    """Whatever the model's dtype: the recurrent state sums thousands of small updates."""
    operator = core.operator
    dtypes = {state.name: state.dtype for state in operator.spec.state}
    assert dtypes == {"conv": "model", "recurrent": "float32"}
    caches = make_caches(operator, 1, 64)
    caches["conv"] = caches["conv"].astype(jnp.bfloat16)
    tensors = {n: jnp.asarray(a, jnp.bfloat16) for n, a in sequences(1, 3).items()}
    out, after = core.run(tensors, caches, make_step([0], [3], 3, context=64))
    assert out["attn"].dtype == jnp.bfloat16
    assert (after["conv"].dtype, after["recurrent"].dtype) == (jnp.bfloat16, jnp.float32)


def test_no_decay_and_full_strength_store_and_recall() -> None:
    """With decay 1 and beta 1, the value of a key is read back exactly, and overwritten."""
    k = jnp.asarray(np.eye(DK, dtype=np.float32)[[0, 1, 0]][None, :, None])
    v = jnp.asarray(np.arange(3 * DV, dtype=np.float32).reshape(1, 3, 1, 1, DV))
    ones = jnp.ones((1, 3, 1, 1))
    memory = jnp.zeros((1, 1, 1, DK, DV))
    out, after = delta_rule(k, k, v, ones, ones, jnp.ones((1, 3), bool), memory)
    np.testing.assert_allclose(out, v)
    np.testing.assert_allclose(after[0, 0, 0, 0], v[0, 2, 0, 0])
    np.testing.assert_allclose(after[0, 0, 0, 1], v[0, 1, 0, 0])
