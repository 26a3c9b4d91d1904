"""Text to token ids and back, chats to prompts, and text out of a stream of ids."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from weavejax.models.chat import render_chat
from weavejax.models.gguf_tokenizer import backend_from_gguf, bos_processor
from weavejax.models.weights import CheckpointError

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")
_REPLACEMENT = "\ufffd"


class Tokenizer:
    """A tokenizer with the semantics of Hugging Face's fast tokenizers.

    Args:
        backend: the ``tokenizers`` object that does the work.
        special_tokens: ``bos_token``, ``eos_token`` ... as text, for chat templates.
        chat_template: Jinja source, if the model has one.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        special_tokens: Mapping[str, str] | None = None,
        chat_template: str | None = None,
    ) -> None:
        self.backend = backend
        self.special_tokens = dict(special_tokens or {})
        self.chat_template = chat_template

    @classmethod
    def from_directory(cls, directory: str | Path) -> Tokenizer:
        """Read ``tokenizer.json`` and what belongs to it.

        Raises:
            FileNotFoundError: no ``tokenizer.json``.
        """
        directory = Path(directory)
        file = directory / "tokenizer.json"
        if not file.exists():
            raise FileNotFoundError(
                f"{file} does not exist: only fast tokenizers (tokenizer.json) are read"
            )
        backend = tokenizers.Tokenizer.from_file(str(file))
        backend.no_padding()
        backend.no_truncation()
        config = _read_json(directory / "tokenizer_config.json")
        special = {key: _text(config[key]) for key in _SPECIAL if config.get(key)}
        if backend.post_processor is None and config.get("add_bos_token"):
            _prepend(backend, special)
        template_file = directory / "chat_template.jinja"
        template = (
            template_file.read_text()
            if template_file.exists()
            else _default_template(config.get("chat_template"))
        )
        return cls(backend, special_tokens=special, chat_template=template)

    def save(self, directory: str | Path) -> None:
        """Write files that :meth:`from_directory` reads back."""
        directory = Path(directory)
        self.backend.save(str(directory / "tokenizer.json"))
        config = json.dumps(self.special_tokens, indent=2, ensure_ascii=False)
        (directory / "tokenizer_config.json").write_text(config + "\n")
        if self.chat_template is not None:
            (directory / "chat_template.jinja").write_text(self.chat_template)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Build one from the metadata of a GGUF file (:class:`GgufFile`).

        Raises:
            CheckpointError: a kind of tokenizer that is not built from GGUF files, or damage.
        """
        tokens = metadata.get("tokenizer.ggml.tokens", ())
        keys = {"unk_token": "unknown", "pad_token": "padding"}
        special = {}
        for key in _SPECIAL:
            name = keys.get(key, key.removesuffix("_token"))
            index = metadata.get(f"tokenizer.ggml.{name}_token_id")
            if index is None:
                continue
            if not 0 <= index < len(tokens):
                raise CheckpointError(
                    f"tokenizer.ggml.{name}_token_id must be one of the {len(tokens)} tokens' "
                    f"ids, got {index}"
                )
            special[key] = tokens[index]
        return cls(
            backend_from_gguf(metadata),
            special_tokens=special,
            chat_template=metadata.get("tokenizer.chat_template"),
        )

    @property
    def vocab_size(self) -> int:
        """Ids there are, added tokens included."""
        return self.backend.get_vocab_size()

    @property
    def eos_token_id(self) -> int | None:
        token = self.special_tokens.get("eos_token")
        return None if token is None else self.backend.token_to_id(token)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``.

        ``add_special_tokens`` adds what the model expects around a text, such as a first
        ``bos``; special tokens written in the text are always recognised.
        """
        return self.backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ``ids``; bytes that are no UTF-8 become U+FFFD."""
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt of a conversation, see :func:`weavejax.models.chat.render_chat`.

        Raises:
            ValueError: the model has no chat template, or the template refuses the messages.
        """
        if self.chat_template is None:
            raise ValueError(
                "this model has no chat template, so it takes text or token ids, not messages"
            )
        return render_chat(
            self.chat_template,
            messages,
            add_generation_prompt=add_generation_prompt,
            special_tokens=self.special_tokens,
            **variables,
        )

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """Token ids of a conversation: the template writes its own special tokens."""
        return self.encode(self.apply_chat_template(messages, **options), add_special_tokens=False)

    def decoder(self, *, skip_special_tokens: bool = True) -> IncrementalDecoder:
        """A decoder for one stream of ids."""
        return IncrementalDecoder(self, skip_special_tokens=skip_special_tokens)


class IncrementalDecoder:
    """Text of a stream of ids, as soon as it is certain.

    What all calls return, joined, is what :meth:`Tokenizer.decode` gives for all ids; no piece
    ends inside a character. A token's text can depend on its neighbours (leading spaces, bytes
    of one character), so each step decodes a window that starts one settled piece earlier.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids: list[int] = []
        """The window: the last settled piece and what came after it."""
        self._settled = 0
        """Leading ids of the window that made the settled piece."""
        self._returned = 0
        """Characters of the window's text that were returned."""

    def push(self, token_id: int) -> str:
        """The text that ``token_id`` completes, often but not always its own."""
        self._ids.append(token_id)
        return self._emit(final=False)

    def extend(self, ids: Iterable[int]) -> str:
        """Push several ids."""
        return "".join(self.push(token_id) for token_id in ids)

    def flush(self) -> str:
        """What is left: a character cut short becomes U+FFFD."""
        return self._emit(final=True)

    def _emit(self, *, final: bool) -> str:
        text = self._decode(self._ids)
        # A character has up to four bytes, so up to three marks may still turn into one.
        marks = min(len(text) - len(text.rstrip(_REPLACEMENT)), 3)
        certain = text if final or not marks else text[:-marks]
        piece = certain[self._returned :]
        self._returned += len(piece)
        if piece and not marks:
            self._ids = self._ids[self._settled :]
            self._settled = len(self._ids)
            self._returned = len(self._decode(self._ids))
        return piece

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skip) if ids else ""


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def _text(token: Any) -> str:
    return token["content"] if isinstance(token, Mapping) else str(token)


def _default_template(template: Any) -> str | None:
    """A config has one template or a list of named ones."""
    if isinstance(template, list):
        named = {item["name"]: item["template"] for item in template}
        return named.get("default")
    return template


def _prepend(backend: tokenizers.Tokenizer, special_tokens: Mapping[str, str]) -> None:
    bos = special_tokens.get("bos_token")
    if bos is not None:
        backend.post_processor = bos_processor(bos, backend.token_to_id(bos))  # type: ignore[assignment]
