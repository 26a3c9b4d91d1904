"""One request on its way: its tokens, its text, and when it ends."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from weavejax.models.loading import Model
from weavejax.prompts import prompt_token_ids
from weavejax.request import FinishReason, Output, Prompt, SamplingParams, StreamChunk
from weavejax.runtime.sampling import NOT_A_NUMBER


@dataclass(eq=False)
class RunningSequence:
    """Host-side state of one request. Devices know only its slot."""

    index: int
    prompt: tuple[int, ...]
    params: SamplingParams
    limit: int
    """Tokens it may generate: ``max_tokens``, or what the context leaves."""
    end_ids: frozenset[int]
    seed: int
    decoder: Any
    """Incremental detokeniser, or ``None`` without a tokenizer."""
    submitted_s: float
    slot: int | None = None
    kept: tuple[int, ...] = ()
    """Generated tokens that are prefilled after the prompt, since the caches were lost."""
    prefilled: int = 0
    """Of :attr:`inputs`, tokens already given to the devices."""
    dispatched: int = 0
    """Tokens whose sampling the devices have been told to do."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    emitted_text: int = 0
    emitted_tokens: int = 0
    finish_reason: FinishReason | None = None
    error: str | None = None
    first_token_s: float | None = None
    finished_s: float | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def inputs(self) -> tuple[int, ...]:
        """Tokens to prefill."""
        return self.prompt + self.kept

    @property
    def prefilling(self) -> bool:
        return self.prefilled < len(self.prompt) + len(self.kept)

    @property
    def decoding(self) -> bool:
        """Has a token on the devices and wants another."""
        return not self.finished and not self.prefilling and self.dispatched < self.limit

    @property
    def next_position(self) -> int:
        """Position of the token that the next iteration takes in."""
        return len(self.prompt) + self.dispatched - 1

    def start_over(self) -> None:
        """Wait for a slot again after the devices lost everything; generated tokens are kept."""
        self.slot, self.prefilled, self.dispatched = None, 0, 0
        self.kept = tuple(self.tokens)

    def accept(self, token: int, logprob: float | None, now_s: float) -> None:
        """Take one sampled token from the devices; later ones are ignored once finished."""
        if self.finished:
            return
        if token == NOT_A_NUMBER:
            self.end(
                "error",
                now_s,
                "the model's logits are no numbers (NaN): its weights or config are damaged, or "
                "its values left the range of its dtype",
            )
            return
        if self.first_token_s is None:
            self.first_token_s = now_s
        self.tokens.append(token)
        if logprob is not None:
            self.logprobs.append(logprob)
        if token in self.end_ids:
            self._finish("stop", now_s, flush=True)
            return
        if self.decoder is not None:
            self.text += self.decoder.push(token)
        if self._cut_at_stop():
            self._finish("stop", now_s)
        elif len(self.tokens) >= self.limit:
            self._finish("length", now_s, flush=True)

    def end(self, reason: FinishReason, now_s: float, error: str | None = None) -> None:
        """End from outside: aborted or failed."""
        if not self.finished:
            self.error = error
            self._finish(reason, now_s)

    def _finish(self, reason: FinishReason, now_s: float, *, flush: bool = False) -> None:
        if flush and self.decoder is not None:
            self.text += self.decoder.flush()
            if self._cut_at_stop():
                reason = "stop"
        self.finish_reason = reason
        self.finished_s = now_s

    def _cut_at_stop(self) -> bool:
        found = [at for at in (self.text.find(stop) for stop in self.params.stop) if at >= 0]
        if found:
            self.text = self.text[: min(found)]
        return bool(found)

    def fresh(self) -> tuple[str, tuple[int, ...]]:
        """Text and tokens not handed out yet; text that may begin a stop string waits."""
        end = len(self.text)
        if not self.finished:
            end -= max((_overlap(self.text, stop) for stop in self.params.stop), default=0)
        text, tokens = self.text[self.emitted_text : end], tuple(self.tokens[self.emitted_tokens :])
        self.emitted_text = max(end, self.emitted_text)
        self.emitted_tokens = len(self.tokens)
        return text, tokens

    def next_chunk(self) -> StreamChunk | None:
        """What is not handed out yet, with the whole result once finished; ``None`` if nothing."""
        text, tokens = self.fresh()
        if not (text or tokens or self.finished):
            return None
        output = self.output() if self.finished else None
        return StreamChunk(index=self.index, text=text, token_ids=tokens, output=output)

    def output(self) -> Output:
        """The result as it stands."""
        times = (self.first_token_s, self.finished_s)
        first, last = (None if t is None else t - self.submitted_s for t in times)
        return Output(
            index=self.index,
            prompt_token_ids=self.prompt,
            token_ids=tuple(self.tokens),
            text=self.text,
            finish_reason=self.finish_reason or "abort",
            logprobs=tuple(self.logprobs) if self.params.logprobs else None,
            error=self.error,
            time_to_first_token_s=first,
            latency_s=last,
        )


def start_sequence(
    index: int,
    prompt: Prompt,
    params: SamplingParams,
    *,
    model: Model,
    context: int,
    number: int,
) -> RunningSequence:
    """A request ready to wait for a slot, or already ended with the reason why it cannot run.

    Args:
        index: position in the call.
        prompt: text, ids or a chat.
        params: how to generate.
        model: gives the tokenizer and the end tokens.
        context: tokens a slot holds.
        number: of this request in the engine; its seed when ``params`` gives none.
    """
    now_s = time.perf_counter()
    tokenizer, ids, error = model.tokenizer, (), None
    try:
        ids = prompt_token_ids(prompt, tokenizer, model.config.vocab_size)
    except (ValueError, TypeError) as problem:
        error = str(problem)
    limit = min(params.max_tokens, context - len(ids))
    if error is None and params.stop and tokenizer is None:
        error = "stop strings need a tokenizer, and this model has none; use stop_token_ids"
    if error is None and limit < 1:
        error = (
            f"a prompt must leave room for one token in the plan's context of {context} "
            f"tokens, got a prompt of {len(ids)}"
        )
    end_ids = {*params.stop_token_ids, *(() if params.ignore_eos else model.eos_token_ids)}
    skip = params.skip_special_tokens
    sequence = RunningSequence(
        index=index,
        prompt=ids,
        params=params,
        limit=limit,
        end_ids=frozenset(end_ids),
        seed=(number if params.seed is None else params.seed) % 2**32,
        decoder=None if tokenizer is None else tokenizer.decoder(skip_special_tokens=skip),
        submitted_s=now_s,
    )
    if error is not None:
        sequence.end("error", now_s, error)
    return sequence


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
