"""Tokenizers built from published vocabularies give the ids published with them."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pocketllm.checkpoint import Checkpoint, open_checkpoint
from pocketllm.checkpoint.gguf_metadata import GgufMetadata
from pocketllm.errors import CheckpointError
from tests.checkpoint.conftest import UNSUPPORTED, VOCABULARIES
from tests.checkpoint.sentencepiece_reference import SPACE_MARK, encode_segment

_SEPARATOR = "\n__ggml_vocab_test__\n"
# Its file expects no Unicode composition, which the model family's own tokenizer.json does.
_COMPOSING = ("qwen2", "qwen35")
_NORMAL, _USER_DEFINED = 1, 4


def published(folder: Path, name: str) -> list[tuple[str, list[int]]]:
    texts = (folder / f"ggml-vocab-{name}.gguf.inp").read_bytes().decode().split(_SEPARATOR)
    lines = (folder / f"ggml-vocab-{name}.gguf.out").read_text(encoding="utf-8").split("\n")
    assert texts.pop() == ""
    assert lines.pop() == ""
    assert len(texts) == len(lines) > 40
    return [(text, [int(word) for word in line.split()]) for text, line in zip(texts, lines, strict=True)]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_published_vocabularies_give_their_published_ids(vocabulary_folder: Path, name: str) -> None:
    tokenizer = open_checkpoint(vocabulary_folder / f"ggml-vocab-{name}.gguf").tokenizer()
    num_compared = 0
    for text, expected in published(vocabulary_folder, name):
        if name in _COMPOSING and not unicodedata.is_normalized("NFC", text):
            assert tokenizer.decode(tokenizer.encode(text, add_bos=False)) == unicodedata.normalize("NFC", text)
            continue
        ids = tokenizer.encode(text, add_bos=False, parse_special=False)
        assert ids == expected, text
        assert tokenizer.decode(ids) == text
        num_compared += 1
    assert num_compared >= 46


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_other_vocabularies_are_refused_clearly(vocabulary_folder: Path, name: str) -> None:
    checkpoint = open_checkpoint(vocabulary_folder / f"ggml-vocab-{name}.gguf")
    with pytest.raises(CheckpointError, match=r"tokenizer\.ggml\.(pre|model) is .*; the known .* are gpt"):
        checkpoint.tokenizer()


@pytest.mark.parametrize(
    ("name", "add_bos", "ends"),
    [
        ("gpt-2", False, (50256,)),
        ("llama-bpe", True, (128001, 128009)),
        ("qwen2", False, (151643, 151645)),
        ("deepseek-llm", True, (100001,)),
        ("deepseek-coder", True, (32014,)),
        ("llama-spm", True, (2,)),
        ("phi-3", True, (32000, 32007)),
    ],
)
def test_published_vocabularies_tell_their_bos_and_their_ends(
    vocabulary_folder: Path, name: str, add_bos: bool, ends: tuple[int, ...]
) -> None:
    checkpoint = open_checkpoint(vocabulary_folder / f"ggml-vocab-{name}.gguf")
    assert checkpoint.tokenizer().add_bos is add_bos
    assert checkpoint.eos_token_ids() == (ends, "tokenizer")


class _Reference:
    """The slow reference over one real vocabulary."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        metadata = checkpoint.metadata
        assert isinstance(metadata, GgufMetadata)
        tokens = [str(token) for token in metadata.array("tokenizer.ggml.tokens", str)]
        types = metadata.array("tokenizer.ggml.token_type", int)
        scores = metadata.array("tokenizer.ggml.scores", float)
        self.tokenizer = checkpoint.tokenizer()
        self.ids = {token: index for index, token in enumerate(tokens)}
        self.scores = {
            token: score
            for token, score, kind in zip(tokens, scores, types, strict=True)
            if kind == _NORMAL and isinstance(score, float)
        }
        self.words = sorted(self.scores)
        self.whole = [token for token, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED]

    def check(self, text: str) -> None:
        # User-defined tokens are matched before the merging that this reference is about.
        if text and not any(token in text for token in self.whole):
            prefixed = " " + text if self.tokenizer.add_space_prefix else text
            expected = encode_segment(prefixed.replace(" ", SPACE_MARK), self.scores, self.ids)
            assert self.tokenizer.encode(text, add_bos=False, parse_special=False) == expected


@pytest.fixture(scope="module")
def references(gemma3: Checkpoint, vocabulary_folder: Path) -> list[_Reference]:
    return [_Reference(gemma3), _Reference(open_checkpoint(vocabulary_folder / "ggml-vocab-llama-spm.gguf"))]


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])  # it times the first use of 262 144 words
@given(data=st.data())
def test_merging_equals_the_slow_reference(references: list[_Reference], data: st.DataObject) -> None:
    for reference in references:
        repetitive = st.text(alphabet=data.draw(st.sampled_from(["a", "ab", "ab ", "eirnst ", "0123 ."])), max_size=60)
        joined = st.lists(st.sampled_from(reference.words), max_size=6).map(lambda words: "".join(words))
        text = data.draw(st.one_of(repetitive, joined, st.text(max_size=20)))
        reference.check(text.replace(SPACE_MARK, " "))
