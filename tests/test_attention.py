"""The core of softmax attention against a full cache with the window masked, in numpy."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from single_operator import Arrays, Run, compile_operator, make_caches, make_operator, make_step

from weavejax.models import LayerKind, ModelConfig, attention
from weavejax.models.attention import bits_as

WINDOW, CONTEXT, LENGTH = 6, 32, 23
HEADS, GROUPS, WIDTH = 4, 2, 8
CONFIG = ModelConfig(
    name="attention",
    model_type="llama",
    vocab_size=8,
    hidden_size=16,
    layer_kinds=(LayerKind(attention="sliding"), LayerKind(attention="full")),
    num_heads=HEADS,
    num_kv_heads=GROUPS,
    head_dim=WIDTH,
    intermediate_size=8,
    max_position=64,
    attention_scale=0.5,
    sliding_window=WINDOW,
)
LAYERS = {"sliding": 0, "full": 1}
VARIANTS = {
    "plain": CONFIG,
    "sinks": replace(CONFIG, attention_sinks=True),
    "capped": replace(CONFIG, attention_softcap=1.5),
}


def sequences(rows: int, length: int = LENGTH, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    heads = {"q": HEADS, "k": GROUPS, "v": GROUPS}
    return {
        name: random.standard_normal((rows, length, count, WIDTH), np.float32)
        for name, count in heads.items()
    }


def reference(
    tensors: dict[str, np.ndarray],
    config: ModelConfig,
    window: int | None,
    sinks: np.ndarray | None,
) -> np.ndarray:
    """Every query, head by head, over all it may see."""
    q, k, v = tensors["q"], tensors["k"], tensors["v"]
    out = np.zeros_like(q)
    for row, at, head in np.ndindex(*q.shape[:3]):
        first = 0 if window is None else max(0, at - window + 1)
        group = head // (HEADS // GROUPS)
        scores = config.scale * k[row, first : at + 1, group] @ q[row, at, head]
        if config.attention_softcap:
            scores = config.attention_softcap * np.tanh(scores / config.attention_softcap)
        weights = np.exp(scores)
        total = weights.sum() + (0 if sinks is None else np.exp(sinks.reshape(-1)[head]))
        out[row, at, head] = weights @ v[row, first : at + 1, group] / total
    return out


def through_cache(
    core: Run, tensors: dict[str, np.ndarray], chunks: list[int], caches: Arrays, pad: int = 0
) -> tuple[np.ndarray, Arrays]:
    """All rows in step, ``pad`` tokens of padding after each chunk that is no single token."""
    rows = len(tensors["q"])
    out, start = [], 0
    for size in chunks:
        extra = pad if size > 1 else 0
        step = make_step([start] * rows, [size] * rows, size + extra, context=CONTEXT)
        part = {name: array[:, start : start + size] for name, array in tensors.items()}
        widths = ((0, 0), (0, extra), (0, 0), (0, 0))
        padded = {n: jnp.asarray(np.pad(a, widths, constant_values=9.0)) for n, a in part.items()}
        produced, caches = core(padded, caches, step)
        out.append(np.asarray(produced["attn"])[:, :size])
        start += size
    return np.concatenate(out, axis=1), caches


@pytest.mark.parametrize("variant", list(VARIANTS))
@pytest.mark.parametrize("kind", list(LAYERS))
@pytest.mark.parametrize(
    "chunks",
    [[1] * LENGTH, [LENGTH], [3, 6, 13, 1], [6, 6, 6, 1, 1, 1, 1, 1], [5, 1, 1, 13, 3]],
    ids=str,
)
def test_cache_equals_reference(kind: str, variant: str, chunks: list[int]) -> None:
    """Prompts and chunks shorter than the window, as long, longer, and many times as long."""
    config = VARIANTS[variant]
    core, params = make_operator(config, f"layers.{LAYERS[kind]}.attn_core")
    tensors = sequences(rows=2)
    sinks = np.asarray(params["sinks"]) if "sinks" in params else None
    expected = reference(tensors, config, WINDOW if kind == "sliding" else None, sinks)
    caches = make_caches(core, 2, CONTEXT, fill=50.0)  # what an earlier request left is never seen
    out, _ = through_cache(
        compiled(variant, kind), tensors, chunks, caches, pad=0 if variant == "plain" else 4
    )
    np.testing.assert_allclose(out, expected, atol=2e-6)


def test_the_ring_keeps_the_window_only() -> None:
    core, _ = make_operator(CONFIG, "layers.0.attn_core")
    for context, kept in ((CONTEXT, WINDOW), (4, 4)):
        caches = make_caches(core, 3, context)
        assert caches["k"].shape == (3, GROUPS, WIDTH, kept)
        assert caches["v"].shape == (3, GROUPS, kept, WIDTH)


@lru_cache
def compiled(variant: str, kind: str) -> Run:
    core, _ = make_operator(VARIANTS[variant], f"layers.{LAYERS[kind]}.attn_core")
    return compile_operator(core)


@settings(max_examples=12)
@given(data=st.data(), kind=st.sampled_from(list(LAYERS)))
def test_any_cut_of_a_prompt_gives_the_same(data: st.DataObject, kind: str) -> None:
    sizes = st.sampled_from([1, 2, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 1])
    chunks = data.draw(st.lists(sizes, min_size=1, max_size=5).filter(lambda c: sum(c) <= CONTEXT))
    core, _ = make_operator(CONFIG, f"layers.{LAYERS[kind]}.attn_core")
    tensors = sequences(rows=1, length=sum(chunks))
    expected = reference(tensors, CONFIG, WINDOW if kind == "sliding" else None, None)
    caches = make_caches(core, 1, CONTEXT)
    out, _ = through_cache(compiled("plain", kind), tensors, chunks, caches)
    np.testing.assert_allclose(out, expected, atol=2e-6)


@pytest.mark.parametrize("kind", list(LAYERS))
@pytest.mark.parametrize("tokens", [1, 4, 9])
def test_idle_rows_and_padding_change_nothing(kind: str, tokens: int) -> None:
    """Rows 0 and 2 work on slots 3 and 1; row 1 is idle, slots 0 and 2 belong to others."""
    core, _ = make_operator(CONFIG, f"layers.{LAYERS[kind]}.attn_core")
    tensors = {name: jnp.asarray(array) for name, array in sequences(3, tokens).items()}
    before = make_caches(core, 4, CONTEXT, fill=7.0)
    lengths = [tokens, 0, max(1, tokens - 2)]
    step = make_step([10, 4, 0], lengths, tokens, context=CONTEXT, slots=[3, 2, 1])
    out, after = core(tensors, before, step)
    assert np.isfinite(np.asarray(out["attn"])).all()
    for name in ("k", "v"):
        cache = np.asarray(after[name])
        place = 3 if name == "k" else 2
        np.testing.assert_array_equal(cache[[0, 2]], np.asarray(before[name])[[0, 2]])
        length = cache.shape[place]
        written = {
            3: {(10 + t) % length for t in range(tokens)},
            1: {t % length for t in range(lengths[2])},
        }
        for slot, places in written.items():
            changed = (cache[slot] != 7.0).any(axis=(0, 1 if name == "k" else 2))
            assert set(np.flatnonzero(changed)) == places


def test_idle_rows_of_a_decode_leave_every_cache_alone() -> None:
    for layer in LAYERS.values():
        core, _ = make_operator(CONFIG, f"layers.{layer}.attn_core")
        tensors = {name: jnp.asarray(array) for name, array in sequences(2, 1).items()}
        before = make_caches(core, 2, CONTEXT, fill=7.0)
        step = make_step([5, 0], [0, 0], 1, context=CONTEXT)
        _, after = core(tensors, before, step)
        for name, cache in before.items():
            np.testing.assert_array_equal(after[name], cache)


def test_a_shorter_prefix_is_enough() -> None:
    """Attention reads no further than asked, and that is enough for what is active."""
    core, _ = make_operator(CONFIG, "layers.1.attn_core")
    tensors = {name: jnp.asarray(array) for name, array in sequences(1, 5).items()}
    caches = make_caches(core, 1, CONTEXT)
    long, _ = core(tensors, caches, make_step([0], [5], 5, context=CONTEXT))
    short, after = core(tensors, caches, make_step([0], [5], 5, context=5))
    np.testing.assert_allclose(long["attn"], short["attn"], atol=1e-6)
    assert after["v"].shape[2] == CONTEXT


@pytest.mark.parametrize("kind", list(LAYERS))
def test_large_scores_stay_finite(kind: str) -> None:
    config = VARIANTS["sinks"]
    core, _ = make_operator(config, f"layers.{LAYERS[kind]}.attn_core")
    tensors = {n: jnp.asarray(300 * a) for n, a in sequences(1, 9).items()}
    out, _ = core(tensors, make_caches(core, 1, CONTEXT), make_step([0], [9], 9, context=CONTEXT))
    assert np.isfinite(np.asarray(out["attn"])).all()
    assert np.abs(np.asarray(out["attn"])).max() > 100


@pytest.mark.parametrize("kind", list(LAYERS))
@pytest.mark.parametrize("tokens", [1, 4, WINDOW + 3])
def test_a_cache_of_integers_holds_the_same_bits(kind: str, tokens: int) -> None:
    core, _ = make_operator(CONFIG, f"layers.{LAYERS[kind]}.attn_core")
    tensors = {n: jnp.asarray(a, jnp.bfloat16) for n, a in sequences(2, tokens).items()}
    step = make_step([5, 0], [tokens, 1], tokens, context=CONTEXT)
    floats = {n: a.astype(jnp.bfloat16) for n, a in make_caches(core, 2, CONTEXT, 0.5).items()}
    integers = {name: bits_as(array, jnp.uint16) for name, array in floats.items()}
    (expected, held), (found, kept) = (core(tensors, c, step) for c in (floats, integers))
    np.testing.assert_array_equal(found["attn"], expected["attn"])
    for name, array in held.items():
        assert kept[name].dtype == jnp.uint16
        np.testing.assert_array_equal(bits_as(kept[name], jnp.bfloat16), array)


@pytest.mark.parametrize("kind", list(LAYERS))
@pytest.mark.parametrize("variant", ["plain", "sinks"])
@pytest.mark.parametrize(
    ("start", "prefix"), [(0, 16), (3, 16), (5, CONTEXT), (CONTEXT - 9, CONTEXT)]
)
def test_blocks_of_queries_give_the_same(
    kind: str, variant: str, start: int, prefix: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of the context, too, where padding reaches over it."""
    core, _ = make_operator(VARIANTS[variant], f"layers.{LAYERS[kind]}.attn_core")
    tensors = {name: jnp.asarray(array) for name, array in sequences(2, 13).items()}
    earlier = make_step([0, 0], [start, start], CONTEXT, context=CONTEXT)
    filled = {name: jnp.asarray(a) for name, a in sequences(2, CONTEXT, seed=1).items()}
    _, before = core(filled, make_caches(core, 2, CONTEXT), earlier)
    lengths = [min(13, CONTEXT - start), 4]
    step = make_step([start, start], lengths, 13, context=prefix)
    whole, expected = core(tensors, before, step)
    monkeypatch.setattr(attention, "QUERY_BLOCK", 5)
    blocks, after = core(tensors, before, step)
    for row, length in enumerate(lengths):
        np.testing.assert_allclose(
            blocks["attn"][row, :length], whole["attn"][row, :length], atol=2e-6
        )
    for name, cache in expected.items():
        np.testing.assert_array_equal(after[name], cache)
