"""GGUF checkpoints: config, weights under their Hugging Face names, and end tokens.

llama.cpp stores the query and key rows of the ``llama`` architecture in the order its own RoPE
wants (even and odd dimensions alternating); they are put back into halves here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from weavejax.models.config import ModelConfig
from weavejax.models.gguf_file import GgufFile
from weavejax.models.hf_config import config_from_hf
from weavejax.models.rope_factors import llama3_scaling
from weavejax.models.weights import CheckpointError, require

ARCHITECTURES = ("llama", "qwen3")
_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FREQS = "rope_freqs.weight"


class GgufSource:
    """Tensors of one ``.gguf`` file, dequantised one at a time.

    Raises:
        FileNotFoundError: no such file.
        CheckpointError: a damaged file, or an architecture that is not read.
    """

    def __init__(self, path: str | Path) -> None:
        self.file = GgufFile(path)
        self.metadata = self.file.metadata
        self.architecture = str(self.metadata.get("general.architecture"))
        if self.architecture not in ARCHITECTURES:
            raise CheckpointError(
                f"{path}: GGUF architectures that can be read are {', '.join(ARCHITECTURES)}, "
                f"got {self.architecture!r}; load the model's Hugging Face directory instead"
            )
        self._gguf_names: dict[str, str] = {}
        for name in self.file.tensors:
            if name != _ROPE_FREQS:
                self._gguf_names[_hf_name(name)] = name
        self._names = frozenset(self._gguf_names)

    @property
    def location(self) -> str:
        return str(self.file.path)

    def names(self) -> frozenset[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        return self.file.tensors[self._gguf_names[require(self, name)]].shape

    def read(self, name: str, dtype: Any, index: int | None = None) -> np.ndarray:
        array = self.file.read(self._gguf_names[require(self, name)])
        if self.architecture == "llama":
            for part, heads in (("q_proj", "head_count"), ("k_proj", "head_count_kv")):
                if f".{part}." in name:
                    array = _split_halves(array, int(self._field(f"attention.{heads}")))
        return (array if index is None else array[index]).astype(dtype, copy=False)

    def config(self, *, name: str | None = None) -> ModelConfig:
        """The model the metadata describes.

        Raises:
            CheckpointError: a field is missing.
        """
        heads, hidden = self._field("attention.head_count"), self._field("embedding_length")
        rotary = self.metadata.get(f"{self.architecture}.rope.dimension_count")
        width = self.metadata.get(f"{self.architecture}.attention.key_length")
        layers = {name.split(".")[1] for name in self.file.tensors if name.startswith("blk.")}
        if self._field("block_count") != len(layers):
            raise CheckpointError(
                f"{self.location} is damaged: block_count is {self._field('block_count')}, and "
                f"there are tensors of {len(layers)} layers"
            )
        head_dim = width or rotary or hidden // heads
        fields = dict(
            model_type=self.architecture,
            vocab_size=self.shape("model.embed_tokens.weight")[0],
            hidden_size=hidden,
            num_hidden_layers=self._field("block_count"),
            num_attention_heads=heads,
            num_key_value_heads=self._field("attention.head_count_kv"),
            head_dim=head_dim,
            partial_rotary_factor=(rotary or head_dim) / head_dim,
            intermediate_size=self._field("feed_forward_length"),
            max_position_embeddings=self._field("context_length"),
            # Stored in float32; the shortest number that rounds to it is what was meant.
            rms_norm_eps=float(str(np.float32(self._field("attention.layer_norm_rms_epsilon")))),
            tie_word_embeddings="lm_head.weight" not in self._names,
            attention_bias="model.layers.0.self_attn.q_proj.bias" in self._names,
            bos_token_id=self.metadata.get("tokenizer.ggml.bos_token_id"),
            eos_token_id=self.metadata.get("tokenizer.ggml.eos_token_id"),
            rope_theta=float(str(np.float32(self._field("rope.freq_base")))),
            rope_scaling=self._rope_scaling(head_dim),
        )
        try:
            return config_from_hf(fields, name=name or self.file.path.stem)
        except ValueError as error:
            raise CheckpointError(f"{self.location}: {error}") from error

    def _rope_scaling(self, head_dim: int) -> dict[str, Any] | None:
        if _ROPE_FREQS in self.file.tensors:
            theta = float(self._field("rope.freq_base"))
            return llama3_scaling(self.file.read(_ROPE_FREQS), theta=theta, head_dim=head_dim)
        prefix = f"{self.architecture}.rope.scaling"
        kind = self.metadata.get(f"{prefix}.type", "none")
        if kind == "none":
            return None
        return dict(
            rope_type=kind,
            factor=self.metadata.get(f"{prefix}.factor", 1.0),
            original_max_position_embeddings=self.metadata.get(f"{prefix}.original_context_length"),
        )

    def _field(self, name: str) -> Any:
        key = f"{self.architecture}.{name}"
        if key not in self.metadata:
            raise CheckpointError(f"{self.location} lacks the metadata field {key!r}")
        return self.metadata[key]


def _hf_name(name: str) -> str:
    if name.startswith("blk."):
        _, layer, part, kind = name.split(".")
        if part in _LAYER:
            return f"model.layers.{layer}.{_LAYER[part]}.{kind}"
    return _WHOLE.get(name, name)


def _split_halves(array: np.ndarray, heads: int) -> np.ndarray:
    pairs = array.reshape(heads, -1, 2, *array.shape[1:])
    return pairs.swapaxes(1, 2).reshape(array.shape)
