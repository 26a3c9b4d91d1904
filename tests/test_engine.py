"""The engine: many requests through few slots, streams, bad input, and what the host does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from serving import group, make_plan, nine_heads, random_prompts, tiny_model

from weavejax.engine import Engine
from weavejax.plan import PlanError, Template
from weavejax.request import Output, SamplingParams
from weavejax.serve import serve

CONTEXT = 64


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """AFD over 2 + 1 replicas, two microbatches, eight slots."""
    model = nine_heads()
    plan = make_plan(
        model, Template(cuts=(3,)), group(8, replicas=2), group(8), microbatches=2, context=CONTEXT
    )
    with serve(model, plan, prefill_chunks=(4, 16)) as engine:
        yield engine


def mixed_requests(count: int) -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts of 1 to 40 tokens; greedy, sampled and stopped early."""
    random = np.random.default_rng(5)
    lengths = tuple(int(n) for n in random.integers(1, 41, size=count))
    prompts = random_prompts(nine_heads(), lengths, seed=6)
    params = []
    for index in range(count):
        kind = index % 4
        params.append(
            SamplingParams(
                max_tokens=int(random.integers(1, 20)),
                temperature=(0.0, 0.7, 1.5, 0.0)[kind],
                top_k=(0, 20, 0, 0)[kind],
                top_p=(1.0, 1.0, 0.9, 1.0)[kind],
                seed=index,
                stop_token_ids=tuple(range(3, 63)) if kind == 3 else (),
                logprobs=index % 2 == 0,
            )
        )
    return prompts, params


class CompileCounter:
    """Counts every compilation JAX does, whoever asked for it."""

    def __init__(self) -> None:
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._event)

    def _event(self, name: str, duration: float, **rest: Any) -> None:
        self.count += name.endswith("backend_compile_duration")


def test_sixty_requests_through_eight_slots_as_each_alone(engine: Engine) -> None:
    prompts, params = mixed_requests(60)
    compiled, counter = engine.stats().programs_compiled, CompileCounter()
    together = engine.generate(prompts, params)
    assert engine.stats().programs_compiled == compiled
    assert counter.count == 0
    for index in range(60):
        [alone] = engine.generate([prompts[index]], params[index])
        assert alone.token_ids == together[index].token_ids, index
        assert alone.finish_reason == together[index].finish_reason
        if alone.logprobs is not None:
            assert alone.logprobs == pytest.approx(together[index].logprobs, abs=1e-4)
    reasons = {output.finish_reason for output in together}
    assert reasons == {"stop", "length"}
    stats = engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)


def test_cached_decoding_equals_uncached(engine: Engine) -> None:
    [prompt] = random_prompts(nine_heads(), (13,), seed=9)
    [cached] = engine.generate([prompt], SamplingParams(max_tokens=20))
    tokens = list(cached.token_ids)
    # every token again, from a prefill of all that precedes it
    prefixes = [prompt + tokens[:count] for count in range(20)]
    uncached = engine.generate(prefixes, SamplingParams(max_tokens=1))
    assert [output.token_ids[0] for output in uncached] == tokens


def test_one_iteration_does_not_touch_the_host(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = engine._executor
    decode, calls = executor.decode, []

    def guarded(prefixes: dict[int, int]) -> Any:
        def refuse(array: Any) -> None:
            raise AssertionError("an array was read by the host inside an iteration")

        with monkeypatch.context() as patch:
            patch.setattr("jax._src.array.ArrayImpl._value", property(refuse))
            patch.setattr("jax._src.array.ArrayImpl.block_until_ready", refuse)
            with (
                jax.transfer_guard_host_to_device("disallow_explicit"),
                jax.transfer_guard_device_to_host("disallow_explicit"),
            ):
                calls.append(prefixes)
                return decode(prefixes)

    monkeypatch.setattr(executor, "decode", guarded)
    prompts, params = mixed_requests(12)
    engine.generate(prompts, params)
    assert len(calls) > 5


def test_stream_pieces_make_the_output(engine: Engine) -> None:
    prompts, params = mixed_requests(10)
    tokens: dict[int, list[int]] = {index: [] for index in range(10)}
    outputs: dict[int, Output] = {}
    for chunk in engine.stream(prompts, params):
        assert chunk.index not in outputs
        tokens[chunk.index] += chunk.token_ids
        if chunk.output is not None:
            outputs[chunk.index] = chunk.output
    assert {i: tuple(t) for i, t in tokens.items()} == {
        i: output.token_ids for i, output in outputs.items()
    }


def test_an_aborted_stream_frees_its_slot_and_disturbs_nobody(engine: Engine) -> None:
    prompts, _ = mixed_requests(3)
    params = SamplingParams(max_tokens=20)
    expected = engine.generate(prompts[:1], params)[0]
    other = engine.stream(prompts[:1], params)
    first = next(other)
    stream = engine.stream(prompts[1:], params)
    next(stream)
    assert engine.stats().running == 3
    stream.close()
    assert engine.stats().running == 1
    tokens = list(first.token_ids) + [t for chunk in other for t in chunk.token_ids]
    assert tuple(tokens) == expected.token_ids
    assert engine.stats().running == 0


def test_a_bad_request_fails_alone(engine: Engine) -> None:
    good = random_prompts(nine_heads(), (5,))[0]
    vocab = nine_heads().config.vocab_size
    bad: list[Any] = [[], [1] * CONTEXT, [vocab], [-1], ["a"], "text", [True], 7]
    outputs = engine.generate([good, *bad, good], SamplingParams(max_tokens=3))
    assert [output.finish_reason for output in outputs] == [
        "length",
        *["error"] * len(bad),
        "length",
    ]
    assert outputs[0].token_ids == outputs[-1].token_ids
    messages = [output.error or "" for output in outputs[1:-1]]
    for message, words in zip(
        messages,
        (
            "at least one token, got an empty prompt",
            f"context of {CONTEXT} tokens, got a prompt of {CONTEXT}",
            f"between 0 and {vocab - 1}, got {vocab}",
            "got -1",
            "whole numbers, got 'a'",
            "no tokenizer",
            "whole numbers, got True",
            "a prompt is text, token ids or a chat, got 7",
        ),
        strict=True,
    ):
        assert words in message


def test_a_prompt_that_fills_the_context_but_one_generates_one(engine: Engine) -> None:
    [prompt] = random_prompts(nine_heads(), (CONTEXT - 1,))
    [output] = engine.generate([prompt], SamplingParams(max_tokens=9))
    assert (len(output.token_ids), output.finish_reason) == (1, "length")


def test_generation_ends_at_the_context(engine: Engine) -> None:
    [prompt] = random_prompts(nine_heads(), (CONTEXT - 6,))
    [output] = engine.generate([prompt], SamplingParams(max_tokens=50))
    assert (len(output.token_ids), output.finish_reason) == (6, "length")


def test_wrong_types_are_named(engine: Engine) -> None:
    prompts: Any = None
    with pytest.raises(TypeError, match="prompts must be a prompt or a list of prompts, got None"):
        engine.generate(prompts)
    params: Any = {"max_tokens": 3}
    with pytest.raises(TypeError, match="params must be SamplingParams"):
        engine.generate([[1]], params)
    [output] = engine.generate(b"abc")  # type: ignore[arg-type]
    assert output.error == "a prompt is text, token ids or a chat, got b'abc'"
    plan: Any = 7
    with pytest.raises(TypeError, match="plan must be a Plan, a policy or a plan file, got 7"):
        serve(nine_heads(), plan)
    with pytest.raises(ValueError, match=r"prefill_chunks must be whole numbers >= 1, got \[0\]"):
        serve(nine_heads(), "afd", prefill_chunks=(0,))
    with pytest.raises(ValueError, match="at least one device"):
        serve(nine_heads(), "afd", devices=[])


def test_caches_beyond_the_memory_are_refused_before_anything_is_loaded() -> None:
    plan = make_plan(nine_heads(), Template(), group(2**31), context=256)
    with pytest.raises(PlanError, match=r"must fit the memory: this host .* use fewer slots"):
        serve(nine_heads(), plan)


def test_params_must_match_the_prompts(engine: Engine) -> None:
    with pytest.raises(ValueError, match=r"one per prompt \(2\), got 1"):
        engine.generate([[1], [2]], [SamplingParams()])


def test_no_prompts_give_no_outputs(engine: Engine) -> None:
    assert engine.generate([]) == []


def test_seeds_repeat_and_differ(engine: Engine) -> None:
    [prompt] = random_prompts(nine_heads(), (4,))
    params = [SamplingParams(max_tokens=12, temperature=1.0, seed=seed) for seed in (1, 1, 2)]
    one, again, other = engine.generate([prompt] * 3, params)
    assert one.token_ids == again.token_ids != other.token_ids


def test_a_closed_engine_says_so() -> None:
    model = tiny_model("llama-3.1-8b")
    plan = make_plan(model, Template(), group(2), context=16)
    engine = serve(model, plan, prefill_chunks=(8,))
    stream = engine.stream([[1, 2]], SamplingParams(max_tokens=8))
    next(stream)
    engine.close()
    engine.close()
    with pytest.raises(RuntimeError, match="engine is closed"):
        engine.generate([[1]])
    last = list(stream)[-1]
    assert last.output is not None and last.output.finish_reason == "abort"


def test_an_interrupted_engine_ends_its_requests_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_model("llama-3.1-8b")
    plan = make_plan(model, Template(), group(2), context=16)
    engine = serve(model, plan, prefill_chunks=(8,))
    waiting = engine.stream([[1, 2], [3], [4]], SamplingParams(max_tokens=8))
    next(waiting)

    def interrupt(prefixes: dict[int, int]) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine._executor, "decode", interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.generate([[5]])
    ends = [chunk.output for chunk in waiting if chunk.output is not None]
    assert len(ends) == 3
    assert all(output.error == "the engine stopped: KeyboardInterrupt" for output in ends)
    with pytest.raises(RuntimeError, match=r"middle of an iteration \(KeyboardInterrupt\)"):
        engine.generate([[1]])


def test_arrays_of_ids_are_prompts(engine: Engine) -> None:
    [listed] = engine.generate([[5, 6, 7]])
    assert engine.generate(np.array([5, 6, 7]))[0].token_ids == listed.token_ids
    assert engine.generate(np.array([[5, 6, 7]] * 2))[1].token_ids == listed.token_ids


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "gemma-3-27b", "gpt-oss-20b"])
def test_bfloat16_serves_under_strict_promotion(name: str) -> None:
    model = tiny_model(name)
    plan = make_plan(model, Template(cuts=(3,)), group(2), group(2), context=32)
    params = SamplingParams(max_tokens=4, logprobs=True)
    with serve(model, plan, prefill_chunks=(8,), dtype="bfloat16") as engine:
        for output in engine.generate(random_prompts(model, (3, 9)), params):
            assert output.finish_reason == "length"
            assert output.logprobs is not None and np.isfinite(output.logprobs).all()


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "gemma-3-27b"])
@pytest.mark.slow
def test_a_reused_slot_remembers_nothing(name: str) -> None:
    """One slot, request after request: recurrent states and rings start afresh."""
    model = tiny_model(name)
    plan = make_plan(model, Template(), group(2), context=48)
    prompts = random_prompts(model, (20, 3, 30, 1, 9))
    params = SamplingParams(max_tokens=10)
    with serve(model, plan, prefill_chunks=(8,)) as engine:
        alone = [engine.generate([prompt], params)[0].token_ids for prompt in prompts]
        together = [output.token_ids for output in engine.generate(prompts, params)]
    with serve(model, plan, prefill_chunks=(8,)) as fresh:
        assert fresh.generate([prompts[2]], params)[0].token_ids == alone[2]
    assert together == alone
