"""Tiny GGUF files, written the way llama.cpp's converter does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

TEXT = (
    "The quick brown fox can't jump over 12 lazy dogs, 345 times; 6789 isn't 12345.\n\n"
    "def main(args):\n    return {'key': [1, 22, 333]}\n\tif x >= 10:  # größer, naïve café\n"
    "привет мир, 你好世界 — 🎉👩‍👩‍👧 e\u0301 ½ ² ١٢٣\r\n   spaces   and  12  digits "
) * 4
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
USER_DEFINED = "<tool>"
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + "
    "'\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@lru_cache
def train_bpe(size: int = 420) -> tuple[list[str], list[str]]:
    """Tokens and merges of a byte-level BPE over ``TEXT``; merges cross digits and spaces.

    The pre-tokenizer keeps whole lines, so that the rule a test picks is what cuts words.
    """
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("\n", "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(SPECIAL) - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=4,
        show_progress=False,
    )
    backend.train_from_iterator([TEXT], trainer)
    model = json.loads(backend.to_str())["model"]
    ordered = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return [*SPECIAL, USER_DEFINED, *ordered], [" ".join(pair) for pair in model["merges"]]


def add_tokenizer(writer: gguf.GGUFWriter, *, pre: str) -> None:
    """Write the vocabulary of :func:`train_bpe` with its control and user-defined tokens."""
    tokens, merges = train_bpe()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_merges(merges)
    control, user, normal = (
        gguf.TokenType.CONTROL,
        gguf.TokenType.USER_DEFINED,
        gguf.TokenType.NORMAL,
    )
    kinds = [control] * len(SPECIAL) + [user]
    writer.add_token_types(kinds + [normal] * (len(tokens) - len(kinds)))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)


def write_gguf(
    path: Path,
    model: Any,
    *,
    pre: str = "smollm",
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    rope_freqs: np.ndarray | None = None,
    metadata: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Write a transformers Llama or Qwen3 model; ``metadata`` adds plain fields."""
    config = model.config
    arch = config.model_type
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if arch == "llama":
        writer.add_rope_dimension_count(config.head_dim)
    for key, value in metadata.items():
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    add_tokenizer(writer, pre=pre)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config.num_hidden_layers)
    for name, parameter in model.named_parameters():
        array = parameter.detach().numpy()
        if arch == "llama":
            array = permute(name, array, config)
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        use = kind if array.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(target, gguf.quants.quantize(array, use), raw_dtype=use)
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", rope_freqs.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def permute(name: str, array: np.ndarray, config: Any) -> np.ndarray:
    """Rows of queries and keys in the order of llama.cpp's RoPE: halves interleaved."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for part, count in heads.items():
        if f".{part}." in name:
            halves = array.reshape(count, 2, -1, *array.shape[1:])
            return halves.swapaxes(1, 2).reshape(array.shape)
    return array
