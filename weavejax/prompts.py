"""Prompts to token ids, with errors that belong to one prompt alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from weavejax.models.tokenizer import Tokenizer
from weavejax.request import Prompt


def split_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as a list of prompts.

    Examples:
        >>> split_prompts("hello"), split_prompts([1, 2]), split_prompts(["a", [3]])
        (['hello'], [[1, 2]], ['a', [3]])
        >>> split_prompts(np.array([1, 2]))
        [[1, 2]]
    """
    if isinstance(prompts, (str, bytes, Mapping)):  # one message is no list of its keys
        return [prompts]  # type: ignore[list-item]
    if not isinstance(prompts, Iterable):
        raise TypeError(f"prompts must be a prompt or a list of prompts, got {prompts!r}")
    items = prompts.tolist() if isinstance(prompts, np.ndarray) else list(prompts)
    if items and all(isinstance(item, int) or _is_message(item) for item in items):
        return [items]  # type: ignore[list-item]
    return items  # type: ignore[return-value]


def _is_message(item: object) -> bool:
    return isinstance(item, dict) and "role" in item


def prompt_token_ids(
    prompt: Prompt, tokenizer: Tokenizer | None, vocab_size: int
) -> tuple[int, ...]:
    """Token ids of text, of a chat through the model's template, or of ids themselves.

    Raises:
        ValueError: an empty prompt, ids out of range or of another type, text without a
            tokenizer, or a chat that the template refuses.

    Examples:
        >>> prompt_token_ids([1, 2], None, 10)
        (1, 2)
    """
    if isinstance(prompt, np.ndarray):
        prompt = prompt.tolist()
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise ValueError(f"a prompt is text, token ids or a chat, got {prompt!r}")
    ids: Sequence[Any]
    if isinstance(prompt, str) or (len(prompt) and isinstance(prompt[0], dict)):
        if tokenizer is None:
            raise ValueError("this model has no tokenizer: give token ids instead of text")
        if isinstance(prompt, str):
            ids = tokenizer.encode(_unicode(prompt))
        else:
            for message in prompt:
                _check_message(message)
            ids = tokenizer.encode_chat(list(prompt))  # type: ignore[arg-type]
    else:
        ids = prompt
    if not ids:
        raise ValueError("a prompt needs at least one token, got an empty prompt")
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, (int, np.integer)):
            raise ValueError(f"token ids must be whole numbers, got {token!r}")
        if not 0 <= token < vocab_size:
            raise ValueError(f"token ids must lie between 0 and {vocab_size - 1}, got {token}")
    return tuple(int(token) for token in ids)


def _check_message(message: object) -> None:
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, str):
        raise ValueError(f"a chat message has a role and text as its content, got {message!r}")
    _unicode(content)


def _unicode(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"text must be valid Unicode: {error}") from None
    return text
