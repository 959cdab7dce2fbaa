"""Byte-level vocabularies made for the test give the ids that the families' own tokenizers give."""

from __future__ import annotations

import json
import string
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, pre_tokenizers, trainers
from tokenizers import Tokenizer as Engine
from tokenizers import models as engine_models

from pocketllm.checkpoint import Tokenizer, open_checkpoint
from pocketllm.checkpoint.pretokenize import PRE_TYPES, build_pre_tokenizer, find_pre_type
from pocketllm.errors import CheckpointError

END = "<|endoftext|>"
TEXTS = [
    "",
    " ",
    "   ",
    "Hello, world! It's 2024; I'LL pay $3.50 (or 1,234,567.89 €).",
    "don't DON'T we'Ve they'RE 'tis 's'S ’s",
    "a\n\n\nb \r\n\r\n c\t\td  \n  e\r f\n",
    "x = foo(bar)[0]->baz; // \tcomment\n    return x+=1;\n\n\n}",
    "你好，世界。中文 和 English 混排 2024年！ ひらがな カタカナ 한국어 문장",
    "नमस्ते दुनिया हिन्दी के मात्रा, ไทยภาษา, العَرَبِيَّة, עִבְרִית",
    "é = e\u0301, ñ = n\u0303, Å = A\u030a, \u1e9b\u0323, \u212b \u2126",
    "\u0301\u0302 lone marks, a\u0301\u0302\u0303b, 1\u0301 .\u0301",
    "½ ² Ⅻ ٣٤٥ १२३ 𝟙𝟚 １２３",
    "😀👍🏽👨‍👩‍👧 🇩🇪 ﷽ ﬁ ﬄ",
    "\u00a0nbsp\u2003em\u3000ideographic\u200bzero\u2028line\u0085next",
    "ÀÉÎ ßẞ Ωmega Жук Ⴀბგ Աբգ 𝐀𝐁 𐐀𐐨 ᲐᲑ ǅ ʰʱ",
    "(！？)、。・「」…—–-_*#@&%~`^|\\/<>[]{}",
    "word" * 40 + "1234567890" * 5 + "!" * 30 + "\n" * 20,
    f"before {END} after",
]
ALPHABETS = ["abc 'sS", "12 ½\n", " \n\r\t", "ée\u0301\u0302a ", "中文ひカ한 a", ".,!-_ aA1", "नमस्ते ", string.printable]


def _split(pattern: str) -> dict[str, object]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
_DIGITS = {"type": "Digits", "individual_digits": True}
# As in the files that these families publish.
DEEPSEEK_SECTIONS: dict[str, list[dict[str, object]]] = {
    "deepseek-coder": [
        _split("[\r\n]"),
        _split(r"\s?\p{L}+"),
        _split(r"\s?\p{P}+"),
        _split("[一-龥ࠀ-一가-\ud7ff]+"),
        _DIGITS,
        _BYTE_LEVEL,
    ],
    "deepseek-v3": [
        _split(r"\p{N}{1,3}"),
        _split("[一-龥\u3040-ゟ゠-ヿ]+"),
        _split(
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
            r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
        _BYTE_LEVEL,
    ],
}


def train(pre_tokenizer: pre_tokenizers.PreTokenizer) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A small vocabulary over the texts above, all bytes included."""
    engine = Engine(engine_models.BPE())
    engine.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        min_frequency=1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    engine.train_from_iterator([*TEXTS, *[unicodedata.normalize("NFC", text) for text in TEXTS]], trainer)
    model = json.loads(engine.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def write_vocabulary(path: Path, pre: str, vocabulary: dict[str, int], merges: Sequence[tuple[str, str]]) -> Tokenizer:
    """The vocabulary as a GGUF file with one special token behind it, opened."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*sorted(vocabulary, key=vocabulary.__getitem__), END])
    writer.add_token_types([gguf.TokenType.NORMAL] * len(vocabulary) + [gguf.TokenType.CONTROL])
    writer.add_token_merges([f"{left} {right}" for left, right in merges])
    writer.add_eos_token_id(len(vocabulary))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return open_checkpoint(path).tokenizer()


@pytest.fixture(scope="module", params=["qwen2", "qwen35"])
def qwen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, object]:
    """Our tokenizer and transformers' of the same family over one vocabulary."""
    from transformers import Qwen2Tokenizer
    from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

    family = Qwen2Tokenizer if request.param == "qwen2" else Qwen3_5Tokenizer
    untrained = family(vocab={END: 0}, merges=[])
    vocabulary, merges = train(untrained.backend_tokenizer.pre_tokenizer)
    # Its annotation names another form of the pairs than its code takes.
    reference = family(vocab={**vocabulary, END: len(vocabulary)}, merges=merges)  # type: ignore[arg-type]
    file = tmp_path_factory.mktemp(request.param) / "vocabulary.gguf"
    return write_vocabulary(file, request.param, vocabulary, merges), reference


def same_ids(pair: tuple[Tokenizer, object], text: str) -> None:
    tokenizer, reference = pair
    ids = tokenizer.encode(text, add_bos=False)
    assert ids == reference.encode(text, add_special_tokens=False), text  # type: ignore[attr-defined]  # untyped
    assert tokenizer.decode(ids, skip_special=False) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("text", TEXTS)
def test_qwen_gives_its_familys_ids(qwen: tuple[Tokenizer, object], text: str) -> None:
    same_ids(qwen, text)
    same_ids(qwen, unicodedata.normalize("NFD", text))


@settings(max_examples=60)
@given(data=st.data())
def test_qwen_gives_its_familys_ids_for_any_text(qwen: tuple[Tokenizer, object], data: st.DataObject) -> None:
    alphabet = data.draw(st.sampled_from(ALPHABETS))
    same_ids(qwen, data.draw(st.one_of(st.text(max_size=30), st.text(alphabet=alphabet, max_size=30))))


@pytest.fixture(scope="module", params=sorted(DEEPSEEK_SECTIONS))
def deepseek(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Engine]:
    """Our tokenizer and one built from the section that the family's tokenizer.json has, over one vocabulary."""
    section = {"type": "Sequence", "pretokenizers": DEEPSEEK_SECTIONS[request.param]}
    shell: dict[str, object] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": []},
        "pre_tokenizer": section,
        "post_processor": None,
        "decoder": None,
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    reference = Engine.from_str(json.dumps(shell))
    assert reference.pre_tokenizer is not None
    vocabulary, merges = train(reference.pre_tokenizer)
    reference.model = engine_models.BPE(vocab={**vocabulary, END: len(vocabulary)}, merges=merges)
    reference.add_special_tokens([AddedToken(END, normalized=False, special=True)])
    file = tmp_path_factory.mktemp(request.param) / "vocabulary.gguf"
    return write_vocabulary(file, request.param, vocabulary, merges), reference


def same_ids_as_engine(pair: tuple[Tokenizer, Engine], text: str) -> None:
    tokenizer, reference = pair
    ids = tokenizer.encode(text, add_bos=False)
    assert ids == reference.encode(text, add_special_tokens=False).ids, text
    assert tokenizer.decode(ids, skip_special=False) == text


@pytest.mark.parametrize("text", TEXTS)
def test_deepseek_gives_its_familys_ids(deepseek: tuple[Tokenizer, Engine], text: str) -> None:
    same_ids_as_engine(deepseek, text)


@settings(max_examples=60)
@given(data=st.data())
def test_deepseek_gives_its_familys_ids_for_any_text(deepseek: tuple[Tokenizer, Engine], data: st.DataObject) -> None:
    alphabet = data.draw(st.sampled_from(ALPHABETS))
    same_ids_as_engine(deepseek, data.draw(st.one_of(st.text(max_size=30), st.text(alphabet=alphabet, max_size=30))))


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("deepseek-llm", "Hi there!!\n\n ok", ["Hi", "Ġthere", "!!", "Ċ", "Ċ", "Ġok"]),
        ("deepseek-llm", "a1234 中文b한  ", ["a", "1", "2", "3", "4", "Ġ", "ä¸Ńæĸĩ", "b", "íķľ", "ĠĠ"]),
        ("deepseek-llm", "աԱ", ["Õ¡", "Ô±"]),
        ("deepseek-coder", "a1234 中文b", ["a", "1", "2", "3", "4", "Ġ", "ä¸Ńæĸĩ", "b"]),
        ("deepseek-v3", "x.foo 1234567 ok", ["x", ".foo", "Ġ", "123", "456", "7", "Ġok"]),
        ("deepseek-v3", "ab中文です。", ["ab", "ä¸Ńæĸĩãģ§ãģĻ", "ãĢĤ"]),
        ("default", "a+b<c 12345", ["a", "+", "b", "<", "c", "Ġ", "123", "45"]),
    ],
)
def test_text_is_cut_where_the_pattern_says(pre: str, text: str, pieces: list[str]) -> None:
    cut = build_pre_tokenizer(find_pre_type(pre, "m.gguf")).pre_tokenize_str(text)
    assert [piece for piece, _ in cut] == pieces


@pytest.mark.parametrize("pre", sorted(PRE_TYPES))
def test_no_cut_loses_a_character(pre: str) -> None:
    pre_tokenizer = build_pre_tokenizer(PRE_TYPES[pre])
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in TEXTS:
        whole = "".join(piece for piece, _ in alphabet.pre_tokenize_str(text))
        assert "".join(piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)) == whole


@pytest.mark.parametrize("name", [None, 3, "", "gpt2", "unheard-of"])
def test_an_unknown_name_lists_the_known(name: object) -> None:
    with pytest.raises(CheckpointError, match=r"m\.gguf: tokenizer\.ggml\.pre is .*deepseek-v3.*tokenizer_path"):
        find_pre_type(name, "m.gguf")
