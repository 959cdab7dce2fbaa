"""The tokenizer's rules on real vocabularies: published ids, exact bytes, special tokens, a leading space."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketllm.checkpoint import Checkpoint, Tokenizer, open_checkpoint
from pocketllm.checkpoint.gguf import read_header
from pocketllm.checkpoint.tokenizer import _byte_alphabet, _undo_byte_alphabet_of_all, undo_byte_alphabet
from pocketllm.checkpoint.tokenizer_gguf import merges_from_scores
from pocketllm.errors import CheckpointError, ConfigurationError
from tests.checkpoint.sample_files import (
    BYTE_LEVEL_KEYS,
    LLAMA_KEYS,
    LLAMA_TENSORS,
    SENTENCEPIECE_KEYS,
    gguf_bytes,
)

SMOLLM2_IDS = {
    "The capital of France is": [504, 3575, 282, 4649, 314],
    "Hello, world!": [19556, 28, 905, 17],
    "  two leading spaces": [216, 827, 2899, 5600],
    "The year 2018 costs $3.50.": [504, 713, 216, 34, 32, 33, 40, 3499, 1885, 35, 30, 37, 32, 30],
    "Ünïcödé 你好 😊": [142, 246, 94, 25972, 83, 7466, 84, 2756, 216, 18645, 250, 48392, 138, 40303, 228],
    "line1\n\nline2\ttab": [1311, 33, 198, 198, 1311, 34, 197, 15999],
    "a   b": [81, 256, 278],
    " ": [216],
    "don't I'll we've": [12420, 982, 339, 3060, 392, 3543],
    "abc 123 4567": [25276, 216, 33, 34, 35, 216, 36, 37, 38, 39],
}
GEMMA3_IDS = {
    "The capital of France is": [818, 5279, 529, 7001, 563],
    "Hello, world!": [9259, 236764, 1902, 236888],
    "  two leading spaces": [138, 13498, 5830, 9952],
    "The year 2018 costs $3.50.": [
        *[818, 1051, 236743, 236778, 236771, 236770, 236828, 5384, 609, 236800, 236761, 236810, 236771, 236761]
    ],
    "Ünïcödé 你好 😊": [238194, 236749, 238527, 236755, 55515, 236859, 43758, 237389, 103453],
    "line1\n\nline2\ttab": [1257, 236770, 108, 1257, 236778, 255968, 4823],
    "<start_of_turn>user\nhi<end_of_turn>": [105, 2364, 107, 2202, 106],
    "a   b": [236746, 139, 236763],
    " ": [236743],
    "don't I'll we've": [13246, 236789, 236745, 564, 236789, 859, 692, 236789, 560],
}
# Control characters and leading bytes of rare planes that SmolLM2's vocabulary lacks: nothing can write them with it.
MISSING_BYTES = frozenset({0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xF1, 0xF2})
SMOLLM2_CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n"
)
SMOLLM2_CHAT_IDS = [
    *[1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2, 198],
    *[1, 4093, 198, 1780, 314, 216, 34, 27, 34, 47, 2, 198, 1, 520, 9531, 198],
]


@pytest.fixture(scope="module")
def smollm(smollm2: Checkpoint) -> Tokenizer:
    return smollm2.tokenizer()


@pytest.fixture(scope="module")
def gemma(gemma3: Checkpoint) -> Tokenizer:
    return gemma3.tokenizer()


@pytest.mark.parametrize("text", SMOLLM2_IDS)
def test_smollm2_texts_become_their_known_ids_and_come_back(smollm: Tokenizer, text: str) -> None:
    assert smollm.encode(text) == SMOLLM2_IDS[text]
    assert smollm.decode(SMOLLM2_IDS[text]) == text


@pytest.mark.parametrize("text", GEMMA3_IDS)
def test_gemma3_texts_become_their_known_ids_and_come_back(gemma: Tokenizer, text: str) -> None:
    assert gemma.encode(text, add_bos=False) == GEMMA3_IDS[text]
    assert gemma.encode(text) == [2, *GEMMA3_IDS[text]]
    assert gemma.decode(GEMMA3_IDS[text], skip_special=False) == text


def test_a_rendered_chat_of_smollm2_becomes_its_known_ids(smollm: Tokenizer) -> None:
    assert smollm.encode(SMOLLM2_CHAT, add_bos=False) == SMOLLM2_CHAT_IDS
    assert smollm.decode(SMOLLM2_CHAT_IDS, skip_special=False) == SMOLLM2_CHAT


def test_smollm2s_tokenizer_tells_its_size_and_special_tokens(smollm: Tokenizer) -> None:
    assert (smollm.vocab_size, smollm.decoder_kind, smollm.add_bos) == (49152, "byte_level", False)
    assert (smollm.bos_token_id, smollm.bos_token) == (1, "<|im_start|>")
    assert (smollm.eos_token_id, smollm.eos_token) == (2, "<|im_end|>")
    assert smollm.token_id("<|im_end|>") == 2
    assert smollm.token_id("no such token") is None
    assert smollm.is_special(2)
    assert not smollm.is_special(504)
    assert smollm.token_text(905) == "Ġworld"
    assert smollm.token_bytes(905) == b" world"


def test_gemma3s_tokenizer_tells_its_size_and_special_tokens(gemma: Tokenizer) -> None:
    assert (gemma.vocab_size, gemma.decoder_kind, gemma.add_bos) == (262144, "byte_fallback", True)
    assert (gemma.bos_token, gemma.eos_token, gemma.add_space_prefix) == ("<bos>", "<eos>", False)
    assert gemma.token_text(1902) == "▁world"
    assert gemma.token_bytes(1902) == b" world"
    assert [gemma.token_bytes(238 + byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]
    assert gemma.token_bytes(138) == b"  "


class TestSpecialTokensInText:
    def test_content_spells_control_tokens_out(self, smollm: Tokenizer) -> None:
        ids = smollm.encode("a<|im_end|>b", parse_special=False)
        assert not any(smollm.is_special(token_id) for token_id in ids)
        assert smollm.decode(ids) == "a<|im_end|>b"
        assert 2 in smollm.encode("a<|im_end|>b")

    def test_user_defined_tokens_are_matched_whole_in_both(self, gemma: Tokenizer) -> None:
        assert gemma.encode("  two\n\n", add_bos=False, parse_special=False) == [138, 13498, 108]
        assert 106 not in gemma.encode("<end_of_turn>", parse_special=False)
        assert gemma.encode("<end_of_turn>", add_bos=False) == [106]

    def test_skipping_leaves_only_control_tokens_out(self, gemma: Tokenizer) -> None:
        assert gemma.decode([2, 9259, 106, 138, 9259]) == "Hello  Hello"

    def test_a_bos_that_the_text_brings_is_not_doubled(self, gemma: Tokenizer) -> None:
        assert gemma.encode("<bos>hi") == [2, 2202]
        assert gemma.encode("<bos>hi", add_bos=True) == [2, 2, 2202]
        assert gemma.encode("<bos>hi", parse_special=False)[0] == 2
        assert gemma.encode("") == [2]
        assert gemma.encode("", add_bos=False) == []


@given(text=st.text(max_size=80))
def test_any_text_comes_back_exactly(smollm2: Checkpoint, gemma3: Checkpoint, text: str) -> None:
    for tokenizer in (smollm2.tokenizer(), gemma3.tokenizer()):
        if tokenizer.decoder_kind == "byte_level" and not MISSING_BYTES.isdisjoint(text.encode()):
            continue
        for parse_special in (True, False):
            ids = tokenizer.encode(text, add_bos=False, parse_special=parse_special)
            # U+2581 is how these vocabularies write a space: that one sign cannot survive.
            expected = text.replace("▁", " ") if tokenizer.decoder_kind == "byte_fallback" else text
            assert tokenizer.decode(ids, skip_special=False) == expected
            assert b"".join(tokenizer.token_bytes(token_id) for token_id in ids) == expected.encode()


@given(ids=st.lists(st.integers(0, 49151), max_size=30))
def test_decoding_is_the_bytes_in_a_row(smollm2: Checkpoint, ids: list[int]) -> None:
    tokenizer = smollm2.tokenizer()
    raw = b"".join(tokenizer.token_bytes(token_id) for token_id in ids if not tokenizer.is_special(token_id))
    assert tokenizer.decode(ids) == raw.decode("utf-8", errors="replace")


def test_ids_outside_the_vocabulary_decode_to_nothing(smollm: Tokenizer) -> None:
    # A model with padded logits can emit them; they have no text.
    assert (smollm.token_bytes(49152), smollm.token_text(1 << 40), smollm.is_special(49152)) == (b"", "", False)
    assert smollm.decode([504, 60000]) == "The"
    with pytest.raises(ConfigurationError, match="negative"):
        smollm.token_bytes(-1)


def test_text_that_is_no_text_is_refused(smollm: Tokenizer) -> None:
    with pytest.raises(ConfigurationError, match="character 2 is a lone surrogate"):
        smollm.encode("ab\ud800c")
    with pytest.raises(ConfigurationError, match="must be text, not int"):
        smollm.encode(5)  # type: ignore[arg-type]  # a caller's mistake


def test_threads_share_a_tokenizer(smollm: Tokenizer) -> None:
    wrong: list[str] = []

    def work(parse_special: bool) -> None:
        for _ in range(100):
            if (
                smollm.decode(smollm.encode(SMOLLM2_CHAT, parse_special=parse_special), skip_special=False)
                != SMOLLM2_CHAT
            ):
                wrong.append("text")
            if (1 in smollm.encode(SMOLLM2_CHAT, parse_special=parse_special)) is not parse_special:
                wrong.append("special")

    threads = [threading.Thread(target=work, args=(index % 2 == 0,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def small(folder: Path, keys: dict[str, object]) -> Tokenizer:
    (folder / "m.gguf").write_bytes(gguf_bytes({**LLAMA_KEYS, **keys}))
    return open_checkpoint(folder).tokenizer()


class TestSpacePrefix:
    def test_the_prefix_is_put_on_and_taken_off(self, tmp_path: Path) -> None:
        tokenizer = small(tmp_path, SENTENCEPIECE_KEYS)
        assert tokenizer.add_space_prefix
        assert [tokenizer.token_text(token_id) for token_id in tokenizer.encode("ab a")] == ["<s>", "▁a", "b", "▁a"]
        assert tokenizer.decode(tokenizer.encode("ab a")) == "ab a"
        assert tokenizer.decode(tokenizer.encode(" ab")) == " ab"
        assert tokenizer.encode("") == [1]

    def test_the_leading_space_follows_every_special_token(self, tmp_path: Path) -> None:
        tokenizer = small(tmp_path, SENTENCEPIECE_KEYS)
        assert [tokenizer.token_text(token_id) for token_id in tokenizer.encode("a</s>a")] == [
            "<s>",
            "▁a",
            "</s>",
            "▁a",
        ]

    def test_a_file_may_leave_out_bos_and_the_leading_space(self, tmp_path: Path) -> None:
        keys = {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False}
        tokenizer = small(tmp_path, {**SENTENCEPIECE_KEYS, **keys})
        assert [tokenizer.token_text(token_id) for token_id in tokenizer.encode("ab a")] == ["ab", "▁a"]
        assert tokenizer.decode(tokenizer.encode(" a")) == " a"

    def test_characters_that_are_no_token_become_bytes(self, tmp_path: Path) -> None:
        tokenizer = small(tmp_path, SENTENCEPIECE_KEYS)
        ids = tokenizer.encode("é😊", add_bos=False)
        assert [tokenizer.token_text(token_id) for token_id in ids[1:]] == [
            f"<0x{byte:02X}>" for byte in "é😊".encode()
        ]
        assert tokenizer.decode(ids) == "é😊"
        assert tokenizer.decode(ids[:-1]) == "é\ufffd"

    def test_a_byte_token_s_surface_in_text_is_text(self, tmp_path: Path) -> None:
        tokenizer = small(tmp_path, SENTENCEPIECE_KEYS)
        assert tokenizer.decode(tokenizer.encode("<0x41>")) == "<0x41>"


class TestVocabulariesThatAreWrong:
    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"tokenizer.ggml.model": "bert"}, "known tokenizer models are gpt2, llama"),
            ({"tokenizer.ggml.pre": "falcon"}, "'falcon'; the known pre-tokenizers are gpt-2, phi-2"),
            ({"tokenizer.ggml.tokens": [1, 2]}, "'tokenizer.ggml.tokens' is not an array of str"),
            ({"tokenizer.ggml.token_type": [1]}, "8 tokens and 1 token types"),
            ({"tokenizer.ggml.merges": ["ab"]}, "'ab', which is not two tokens"),
            ({"tokenizer.ggml.merges": ["a z"]}, "the vocabulary and its merges disagree"),
            ({"tokenizer.ggml.merges": ["a c"]}, "the vocabulary and its merges disagree"),
            ({"tokenizer.ggml.eos_token_id": 8}, "eos_token_id is 8, not an id of a vocabulary of 8"),
            ({"tokenizer.ggml.eos_token_id": "6"}, "eos_token_id is '6'"),
            ({"tokenizer.ggml.tokens": ["<eos>", "b", "c", "Ġ", "ab", "Ġa", "<eos>", "a"]}, "'<eos>' twice"),
        ],
    )
    def test_a_broken_byte_level_gguf_tokenizer_is_named(
        self, tmp_path: Path, changes: dict[str, object], problem: str
    ) -> None:
        with pytest.raises(CheckpointError, match=problem) as caught:
            small(tmp_path, {**BYTE_LEVEL_KEYS, **changes})
        assert "m.gguf" in caught.value.message

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"tokenizer.ggml.scores": [0.0]}, "264 tokens and 1 scores"),
            ({"tokenizer.ggml.scores": ["a"]}, "not an array of float"),
            ({"tokenizer.ggml.tokens": ["<unk>"] * 264}, "twice|not of the form"),
            ({"tokenizer.ggml.token_type": [6] * 264}, "'<unk>' is not of the form <0xNN>"),
        ],
    )
    def test_a_broken_sentencepiece_gguf_tokenizer_is_named(
        self, tmp_path: Path, changes: dict[str, object], problem: str
    ) -> None:
        with pytest.raises(CheckpointError, match=problem):
            small(tmp_path, {**SENTENCEPIECE_KEYS, **changes})

    def test_none_is_written_as_all_bits_set(self, tmp_path: Path) -> None:
        tokenizer = small(tmp_path, {**BYTE_LEVEL_KEYS, "tokenizer.ggml.eos_token_id": (1 << 32) - 1})
        assert tokenizer.eos_token_id is None
        with pytest.raises(ConfigurationError, match="has no BOS token"):
            tokenizer.encode("a", add_bos=True)

    def test_two_ids_with_one_surface_both_decode(self, tmp_path: Path) -> None:
        tokens = ["a", "b", "c", "Ġ", "ab", "Ġa", "<eos>", "a"]
        keys = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1, 1, 1, 1, 1, 1, 3, 1]}
        tokenizer = small(tmp_path, {**BYTE_LEVEL_KEYS, **keys})
        assert tokenizer.encode("a") == [0]
        assert tokenizer.decode([0, 7, 3, 1]) == "aa b"


def test_the_byte_alphabet_has_every_byte_once() -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    found = [undo_byte_alphabet(char) for char in ByteLevel.alphabet()]
    assert sorted(found) == [bytes([byte]) for byte in range(256)]
    assert undo_byte_alphabet("Ġé") == b" \xe9"
    assert undo_byte_alphabet("a｜") == "a｜".encode()


def each_in_turn(tokenizer: Tokenizer) -> list[bytes]:
    return [tokenizer.token_bytes(index) for index in range(tokenizer.vocab_size)]


def test_the_bytes_of_all_tokens_are_those_of_each(smollm: Tokenizer, gemma: Tokenizer) -> None:
    assert smollm.all_token_bytes() == each_in_turn(smollm)
    assert gemma.all_token_bytes() == each_in_turn(gemma)


@pytest.mark.parametrize(
    "keys",
    [
        BYTE_LEVEL_KEYS,
        SENTENCEPIECE_KEYS,
        {
            **BYTE_LEVEL_KEYS,
            "tokenizer.ggml.tokens": ["a", "b", "c", "Ġ", "ab", "Ġa", "<eos>", "a"],
            "tokenizer.ggml.token_type": [1, 1, 1, 1, 1, 1, 3, 1],
        },
        {**BYTE_LEVEL_KEYS, "tokenizer.ggml.tokens": ["a", "b", "\uffff", "Ġ", "ab", "Ġa", "<ｅos>", "\ufffe\xad"]},
        {**BYTE_LEVEL_KEYS, "tokenizer.ggml.tokens": ["a", "b", "", "Ġ", "ab", "Ġa", "<eos>", "｜"]},
    ],
)
def test_the_bytes_of_all_tokens_of_odd_vocabularies(tmp_path: Path, keys: dict[str, object]) -> None:
    tokenizer = small(tmp_path, keys)
    assert tokenizer.all_token_bytes() == each_in_turn(tokenizer)


@given(st.lists(st.text("Ġéaz\xad\x00 \ufffe\uffff｜Ċ")))
def test_surfaces_are_translated_together_as_one_by_one(surfaces: list[str]) -> None:
    assert _undo_byte_alphabet_of_all(surfaces) == list(map(undo_byte_alphabet, surfaces))


@given(st.text())
def test_the_byte_alphabet_is_undone_a_character_at_a_time(surface: str) -> None:
    alphabet = _byte_alphabet()
    known = all(char in alphabet for char in surface)
    expected = bytes(alphabet[char] for char in surface) if known else surface.encode("utf-8")
    assert undo_byte_alphabet(surface) == expected


def merges_by_sorting(tokens: list[str], types: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """What :func:`merges_from_scores` says, written down as one sort."""
    normal = {text: index for index, (text, kind) in enumerate(zip(tokens, types, strict=True)) if kind == 1}
    ranked = [
        (-scores[index], index, -cut, (text[:cut], text[cut:]))
        for text, index in normal.items()
        for cut in range(1, len(text))
        if text[:cut] in normal and text[cut:] in normal
    ]
    return [pair for *_, pair in sorted(ranked)]


@given(st.lists(st.tuples(st.text("ab", min_size=1, max_size=5), st.sampled_from([1, 1, 1, 3]), st.integers(-3, 0))))
def test_merges_come_by_score_then_id_then_longer_left_part(vocabulary: list[tuple[str, int, int]]) -> None:
    tokens, types = [text for text, _, _ in vocabulary], [kind for _, kind, _ in vocabulary]
    scores = [float(score) for _, _, score in vocabulary]
    assert merges_from_scores(tokens, types, scores) == merges_by_sorting(tokens, types, scores)


@given(st.lists(st.text(max_size=20)), st.data())
def test_chosen_strings_of_an_array_are_read_alone(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], data: st.DataObject
) -> None:
    indices = sorted(data.draw(st.sets(st.integers(0, len(texts) - 1)))) if texts else []
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    path.write_bytes(gguf_bytes({**LLAMA_KEYS, "words": texts or ["x"]}, LLAMA_TENSORS))
    metadata = read_header(path).metadata
    assert metadata.texts_at("words", indices) == [texts[index] for index in indices]
    with pytest.raises(CheckpointError, match="is not an array of str"):
        metadata.texts_at("llama.block_count", indices)
