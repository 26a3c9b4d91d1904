"""Prompts: one or several, and their token ids."""

from __future__ import annotations

import re

import numpy as np
import pytest

from weavejax.prompts import prompt_token_ids, split_prompts

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]


class Letters:
    """One token for each letter; a chat is its contents side by side."""

    def encode(self, text):
        return [ord(letter) for letter in text]

    def encode_chat(self, messages):
        return self.encode("|".join(message["content"] for message in messages))


@pytest.mark.parametrize(
    ("prompts", "split"),
    [
        ("text", ["text"]),
        ("", [""]),
        ([5, 6], [[5, 6]]),
        (CHAT, [CHAT]),
        (["a", "b"], ["a", "b"]),
        ([[5], [6, 7]], [[5], [6, 7]]),
        ([CHAT, "a", [5]], [CHAT, "a", [5]]),
        (("a", (5,)), ["a", (5,)]),
        ([], []),
        ([[]], [[]]),
        (CHAT[1], [CHAT[1]]),  # refused below: a chat is a list of messages
    ],
)
def test_one_prompt_and_several_are_told_apart(prompts, split):
    assert split_prompts(prompts) == split


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("ab", (97, 98)),
        (CHAT, tuple(map(ord, "Be brief.|Hello"))),
        ([0, 127], (0, 127)),
        ((3,), (3,)),
        ([np.int32(4), np.int64(5)], (4, 5)),
    ],
)
def test_token_ids_of_every_kind_of_prompt(prompt, ids):
    got = prompt_token_ids(prompt, Letters(), 128)
    assert got == ids and all(type(token) is int for token in got)


NO_TOKENIZER = "this model has no tokenizer: give token ids instead of text"


@pytest.mark.parametrize(
    ("prompt", "tokenizer", "message"),
    [
        ("a", None, NO_TOKENIZER),
        (CHAT, None, NO_TOKENIZER),
        ("", Letters(), "a prompt needs at least one token, got an empty prompt"),
        ([], None, "a prompt needs at least one token, got an empty prompt"),
        ([128], None, "token ids must lie between 0 and 127, got 128"),
        ([5, -1], None, "token ids must lie between 0 and 127, got -1"),
        ([1.0], None, "token ids must be whole numbers, got 1.0"),
        ([True], None, "token ids must be whole numbers, got True"),
        (["a"], None, "token ids must be whole numbers, got 'a'"),
        (7, None, "a prompt is text, token ids or a chat, got 7"),
        (
            CHAT[1],
            Letters(),
            f"a prompt is text, token ids or a chat, got {CHAT[1]}",
        ),
        (None, None, "a prompt is text, token ids or a chat, got None"),
    ],
)
def test_a_bad_prompt_says_why(prompt, tokenizer, message):
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        prompt_token_ids(prompt, tokenizer, 128)
