"""Requests and outputs: what goes into an engine and what comes out."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

FinishReason = Literal["stop", "length", "abort", "error"]
Message = dict[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]
"""Text, token ids, or a chat (messages with ``role`` and ``content``)."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to generate. The default is greedy, so that runs repeat.

    Raises:
        ValueError: a value out of range, NaN or of the wrong type; the message names it.

    Examples:
        >>> SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=64).greedy
        False
    """

    max_tokens: int = 16
    """Tokens to generate at most; the context may end generation earlier."""
    temperature: float = 0.0
    """0 is greedy."""
    top_k: int = 0
    """Sample among the k most likely tokens; 0 for all."""
    top_p: float = 1.0
    """Sample among the most likely tokens that together reach this probability."""
    seed: int | None = None
    """Seed of this request's draws; ``None`` numbers requests in the order of arrival."""
    stop: tuple[str, ...] = ()
    """Generation ends before the first of these strings; the text leaves it out."""
    stop_token_ids: tuple[int, ...] = ()
    """Generation ends with any of these tokens, besides the model's own end tokens."""
    ignore_eos: bool = False
    """Do not stop at the model's own end tokens."""
    logprobs: bool = False
    """Return the log-probability of every generated token (of the model, untempered)."""
    skip_special_tokens: bool = True
    """Leave control tokens out of the text."""

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        for name, values in (("stop", stop), ("stop_token_ids", self.stop_token_ids)):
            if not isinstance(values, Iterable):
                raise ValueError(f"{name} must be a sequence, got {values!r}")
            object.__setattr__(self, name, tuple(values))
        self._whole("max_tokens", self.max_tokens, 1)
        for name in ("ignore_eos", "logprobs", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")
        self._whole("top_k", self.top_k, 0)
        if self.seed is not None:
            self._whole("seed", self.seed, 0)
        self._number("temperature", self.temperature, 0.0, math.inf)
        self._number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0:
            raise ValueError("top_p must be greater than 0 and at most 1, got 0")
        if any(not isinstance(text, str) or not text for text in self.stop):
            raise ValueError(f"stop must hold non-empty strings, got {self.stop!r}")
        for token in self.stop_token_ids:
            self._whole("stop_token_ids", token, 0)

    @staticmethod
    def _whole(name: str, value: Any, low: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ValueError(f"{name} must be a whole number >= {low}, got {value!r}")

    @staticmethod
    def _number(name: str, value: Any, low: float, high: float) -> None:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        # Compared, not converted: a whole number may be larger than any float.
        if not number or not low <= value <= high or value > sys.float_info.max:
            limit = f"between {low:g} and {high:g}" if math.isfinite(high) else f">= {low:g}"
            raise ValueError(f"{name} must be a finite number {limit}, got {value!r}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True, kw_only=True)
class Output:
    """The result of one request."""

    index: int
    """Position of its prompt in the call."""
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    """Empty when the model has no tokenizer."""
    finish_reason: FinishReason
    logprobs: tuple[float, ...] | None = None
    """One per generated token, when asked for."""
    error: str | None = None
    """Why the request could not run, where ``finish_reason`` is ``error``."""
    time_to_first_token_s: float | None = None
    """From submission to the first token on the host."""
    latency_s: float | None = None
    """From submission to the last token on the host."""


@dataclass(frozen=True, kw_only=True)
class StreamChunk:
    """What one request gained since its last chunk."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    output: Output | None = None
    """The whole result, in the last chunk of the request."""
