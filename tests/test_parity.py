"""Every architecture against Hugging Face transformers, on tiny random checkpoints."""

from __future__ import annotations

import hf_tiny
import numpy as np
import pytest
import torch
from layer_parity import differences, run_operators
from parity_cases import LOGITS_TOLERANCE, TOLERANCE, parity_case

from weavejax.request import SamplingParams
from weavejax.serve import serve

NEW_TOKENS = 64
PROMPT_LENGTHS = (5, 37)
"""One ends inside the first chunk and the window, one takes three chunks and four windows."""


@pytest.mark.parametrize("family", hf_tiny.FAMILIES)
def test_every_operator_matches(family: str) -> None:
    case = parity_case(family)
    worst = differences(run_operators(case.model, case.tokens), case.expected)
    assert len(worst) == 4 * case.model.config.num_layers + 2
    assert worst.pop("head") < LOGITS_TOLERANCE
    assert max(worst.values()) < TOLERANCE, max(worst, key=lambda name: worst[name])


@pytest.mark.parametrize("family", hf_tiny.FAMILIES)
def test_through_the_caches_equals_at_once(family: str) -> None:
    """A chunk longer than the window, shorter ones, then single tokens."""
    case = parity_case(family)
    worst = differences(
        run_operators(case.model, case.tokens, chunks=(13, 3, 3, 3, 3, 1, 1, 1, 1)), case.expected
    )
    assert worst.pop("head") < LOGITS_TOLERANCE
    assert max(worst.values()) < TOLERANCE, max(worst, key=lambda name: worst[name])


@pytest.mark.slow
@pytest.mark.parametrize("family", hf_tiny.FAMILIES)
def test_greedy_tokens_match(family: str) -> None:
    """Ours cached = transformers' cached = ours uncached = transformers' uncached.

    The uncached choices come from one pass over prompt and answer: along equal tokens, the best
    token at every position is what generating without a cache would choose. Ours is checked so on
    the longer prompt.
    """
    case = parity_case(family)
    random = np.random.default_rng(1)
    prompts = [random.integers(3, 320, n).tolist() for n in PROMPT_LENGTHS]
    params = SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=True)
    with serve(case.model, "colocated", slots=2, context=112, prefill_chunks=(16,)) as engine:
        outputs = engine.generate(prompts, params)
    for prompt, output in zip(prompts, outputs, strict=True):
        answer = list(output.token_ids)
        assert len(answer) == NEW_TOKENS and len(set(answer)) > 5
        text = torch.tensor([prompt])
        cached = case.theirs.generate(
            text,
            attention_mask=torch.ones_like(text),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert cached[0, len(prompt) :].tolist() == answer
        whole = torch.tensor([prompt + answer])
        with torch.no_grad():
            logits = case.theirs(whole).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == answer
        chosen = torch.log_softmax(logits, -1).gather(1, torch.tensor(answer)[:, None])[:, 0]
        assert output.logprobs is not None
        np.testing.assert_allclose(output.logprobs, chosen.numpy(), atol=LOGITS_TOLERANCE)
    ours = run_operators(case.model, whole.numpy(), chunks=whole.shape[1:])["head"]["logits"]
    ours = ours[0, len(prompt) - 1 : -1]
    assert ours.argmax(-1).tolist() == answer
    np.testing.assert_allclose(ours, logits.numpy(), atol=LOGITS_TOLERANCE)
