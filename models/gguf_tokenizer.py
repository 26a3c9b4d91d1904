"""A tokenizer from a GGUF file's own vocabulary, merges and token types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from weavejax.models.weights import CheckpointError

_CONTROL, _USER_DEFINED = 3, 4
_WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _bytes(use_regex: bool) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def _split(numbers: str) -> Any:
    pattern = Regex(f"{_WORD}|{numbers}{_REST}")
    split = pre_tokenizers.Split(pattern, behavior="isolated")
    return pre_tokenizers.Sequence([split, _bytes(False)])


# ``tokenizer.ggml.pre`` names the rule that cuts text into words before merging.
_PRE_TOKENIZERS: dict[str, Any] = {
    "gpt-2": lambda: _bytes(True),
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), _bytes(True)]
    ),
    "llama-bpe": lambda: _split(r"\p{N}{1,3}"),
    "qwen2": lambda: _split(r"\p{N}"),
}
_ADDS_BOS = ("llama-bpe",)  # unless the file says otherwise
_IGNORES_MERGES = ("llama-bpe",)
_NORMALIZES = ("qwen2",)


def backend_from_gguf(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Build the byte-level BPE tokenizer that the metadata of a GGUF file describes.

    Raises:
        CheckpointError: another kind of tokenizer, or a word rule that is not known.
    """
    kind = metadata.get("tokenizer.ggml.model")
    pre = metadata.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2":
        raise CheckpointError(
            "only byte-level BPE ('gpt2') tokenizers are built from GGUF files, got "
            f"tokenizer.ggml.model {kind!r}; load the model's Hugging Face directory instead"
        )
    if pre not in _PRE_TOKENIZERS:
        raise CheckpointError(
            f"tokenizer.ggml.pre must be one of {', '.join(_PRE_TOKENIZERS)}, got {pre!r}; "
            "load the model's Hugging Face directory instead"
        )
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    try:
        model = models.BPE(vocabulary, merges, ignore_merges=pre in _IGNORES_MERGES)  # type: ignore[arg-type]
    except Exception as error:  # tokenizers raises no subclass
        raise CheckpointError(f"the file's vocabulary is damaged: {error}") from error
    backend = tokenizers.Tokenizer(model)
    if pre in _NORMALIZES:
        backend.normalizer = normalizers.NFC()  # type: ignore[assignment]
    backend.pre_tokenizer = _PRE_TOKENIZERS[pre]()  # type: ignore[assignment]
    backend.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    types = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    backend.add_tokens(
        [
            AddedToken(token, special=type_ == _CONTROL, normalized=False)
            for token, type_ in zip(tokens, types, strict=True)
            if type_ in (_CONTROL, _USER_DEFINED)
        ]
    )
    if metadata.get("tokenizer.ggml.add_bos_token", pre in _ADDS_BOS):
        bos_id = metadata["tokenizer.ggml.bos_token_id"]
        backend.post_processor = bos_processor(tokens[bos_id], bos_id)  # type: ignore[assignment]
    return backend


def bos_processor(bos: str, bos_id: int) -> Any:
    """A post-processor that starts every text with ``bos``."""
    return processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, bos_id)]
    )
