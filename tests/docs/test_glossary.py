"""The words of docs/glossary.md mean in the code's public names what the page says."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.identifiers import Name, names, words_of
from tests.docs.pages import text

PAGE = Path("docs/glossary.md")
ENTRY = re.compile(r"^\| (?P<word>[^|]+) \| (?P<meaning>[^|]+) \| (?P<code>[^|]*) ?\|$", re.MULTILINE)

_CPP = "pocketllm-cpp/csrc"
_PCPP = "pocketllm-cpp/src/pocketllm_cpp"
_TORCH = "pocketllm-torch/src/pocketllm_torch"
_CORE = "pocketllm-core/src/pocketllm"
_SERVER = "pocketllm-server/src/pocketllm_server"
_ENGINES = (f"{_CPP}/engine/*", f"{_TORCH}/engine/*", f"{_PCPP}/*", f"{_CORE}/types.py")
_CACHES = (f"{_CPP}/kernels/*", f"{_TORCH}/layers/*")


class Rule(NamedTuple):
    """``places``: patterns of the files where the word has its meaning. ``elsewhere``: names that may stand in any
    file, each with the reason."""

    places: tuple[str, ...]
    elsewhere: Mapping[str, str]


RULES: Mapping[str, Rule] = {
    # A sequence's recurrent state lies at its slot, so the caches know slots too.
    "slot": Rule((*_ENGINES, f"{_CPP}/kernels/*.h", f"{_TORCH}/layers/*"), {}),
    "chunk": Rule(
        (
            *_ENGINES, f"{_TORCH}/layers/*", f"{_TORCH}/weights/long_chunks.py", f"{_TORCH}/weights/precision.py",
            f"{_SERVER}/transport/http_chunks.py",
        ),
        {"prefill_chunk_tokens": "the engine's option for the parts of a prompt"},
    ),
    "choice": Rule((f"{_CORE}/*", f"{_SERVER}/*", f"{_CPP}/engine/*", f"{_TORCH}/engine/*"), {}),
    # The files of stored weights mean quantised blocks: the formats have the word from their inventors.
    "block": Rule(
        (
            *_ENGINES, *_CACHES, f"{_TORCH}/options.py", f"{_CPP}/models/decoder.h", f"{_CPP}/core/dtype.h",
            f"{_CORE}/checkpoint/gguf_types.py", f"{_TORCH}/weights/gguf_*.py",
        ),
        {"BLOCK": "Triton's word for what one program computes"},
    ),
    # In the rooms of request bodies a row is a row of the field table.
    "row": Rule(
        (
            *_ENGINES, f"{_CPP}/*", f"{_TORCH}/*", f"{_CORE}/testing/*", f"{_CORE}/fields/*", f"{_SERVER}/wire/*",
            f"{_SERVER}/routes/*",
        ),
        {},
    ),
}  # fmt: skip


def entries() -> list[re.Match[str]]:
    return [entry for entry in ENTRY.finditer(text(PAGE)) if entry["word"] not in ("word", "---")]


def test_a_word_is_explained_once() -> None:
    words = [entry["word"].strip("*") for entry in entries()]
    assert len(words) > 50
    assert sorted(words) == sorted(set(words))


def test_the_page_marks_the_words_that_are_guarded() -> None:
    assert {entry["word"].strip("*") for entry in entries() if entry["word"].startswith("**")} == set(RULES)


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry["word"].strip("*"))
def test_a_name_on_the_page_is_a_name_of_the_code(entry: re.Match[str]) -> None:
    known = {name.name for name in names()}
    shown = re.findall(r"`([^`]+)`", entry["code"])
    assert [name for name in shown if name not in known and not _is_module(name)] == []


def _is_module(name: str) -> bool:
    return "." in name and importlib.util.find_spec(name) is not None


@pytest.mark.parametrize("word", RULES)
def test_a_guarded_word_has_its_meaning_everywhere(word: str) -> None:
    strangers = [str(name) for name in names() if word in name.words and not _allowed(RULES[word], name)]
    assert strangers == [], f"{PAGE} says what {word!r} means"


@pytest.mark.parametrize("word", RULES)
def test_an_exception_is_still_needed(word: str) -> None:
    rule = RULES[word]
    outside = {name.name for name in names() if not any(fnmatch(name.path, place) for place in rule.places)}
    assert set(rule.elsewhere) - outside == set()


def _allowed(rule: Rule, name: Name) -> bool:
    return name.name in rule.elsewhere or any(fnmatch(name.path, place) for place in rule.places)


def test_words_are_found_in_every_spelling() -> None:
    assert "slot" in words_of("max_num_slots")
    assert "slot" in words_of("SlotState")
    assert "slot" in words_of("kNumSlots")
    assert "slot" not in words_of("slotted")
