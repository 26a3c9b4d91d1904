"""What a throughput benchmark sends: random tokens of given lengths, or a file of prompts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from weavejax.request import Prompt


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """One request: its prompt and how many tokens it asks for."""

    prompt: Prompt
    max_tokens: int


def random_requests(
    count: int,
    input_tokens: int,
    output_tokens: int,
    *,
    vocab_size: int,
    spread: float = 0.0,
    seed: int = 0,
) -> list[BenchRequest]:
    """Requests of random token ids.

    Args:
        count: how many.
        input_tokens: mean prompt length.
        output_tokens: mean generated length; end tokens are ignored by the benchmark.
        vocab_size: ids are drawn below it.
        spread: lengths are uniform within this fraction around their mean; 0 is fixed.
        seed: of the draws.

    Raises:
        ValueError: lengths below one token or a spread outside [0, 1).

    Examples:
        >>> [len(r.prompt) for r in random_requests(2, 4, 8, vocab_size=100)]
        [4, 4]
    """
    if count < 1 or input_tokens < 1 or output_tokens < 1:
        raise ValueError(
            "a benchmark needs at least one request of one input and one output token, got "
            f"{count} requests of {input_tokens} and {output_tokens}"
        )
    if not 0 <= spread < 1:
        raise ValueError(f"spread must be at least 0 and below 1, got {spread}")
    random = np.random.default_rng(seed)

    def lengths(mean: int) -> np.ndarray:
        low, high = (max(1, round(mean * (1 + side * spread))) for side in (-1, 1))
        return random.integers(low, high + 1, size=count)

    return [
        BenchRequest(
            prompt=[int(token) for token in random.integers(0, vocab_size, size=inputs)],
            max_tokens=int(outputs),
        )
        for inputs, outputs in zip(lengths(input_tokens), lengths(output_tokens), strict=True)
    ]


def load_requests(path: str | Path, *, max_tokens: int) -> list[BenchRequest]:
    """Requests from JSON lines: ``{"prompt": text, ids or chat, "max_tokens": optional}``.

    Raises:
        ValueError: a line that is no such object; the message names it.
    """
    requests = []
    for number, line in enumerate(Path(path).read_text("utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            prompt, tokens = entry["prompt"], entry.get("max_tokens", max_tokens)
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f'{path}:{number}: a line is {{"prompt": ..., "max_tokens": ...}}, '
                f"got {line[:60]!r}"
            ) from error
        requests.append(BenchRequest(prompt=prompt, max_tokens=tokens))
    if not requests:
        raise ValueError(f"{path} holds no requests")
    return requests
