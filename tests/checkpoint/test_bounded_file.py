"""Bounded reads and bounded JSON: no length is believed before it is compared with the file."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketllm.checkpoint.bounded_file import BoundedReader, parse_json_object, read_json_file
from pocketllm.errors import CheckpointError
from tests.checkpoint.sample_files import text


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file.bin"


def test_values_are_read_in_order_and_position_follows(file: Path) -> None:
    file.write_bytes(struct.pack("<IQ", 7, 1 << 40) + text("häh") + b"rest")
    with BoundedReader(file) as reader:
        assert reader.u32("a") == 7
        assert reader.u64("b") == 1 << 40
        assert reader.text(100, "c") == "häh"
        assert reader.position == 4 + 8 + 8 + 4
        reader.skip(2, "d")
        assert reader.read(2, "e") == b"st"
        assert reader.remaining == 0


@pytest.mark.parametrize("length", [5, 1 << 31, 1 << 60, (1 << 64) - 1])
def test_a_length_past_the_end_names_the_file_the_place_and_the_field(file: Path, length: int) -> None:
    file.write_bytes(struct.pack("<Q", length) + b"abcd")
    with BoundedReader(file) as reader, pytest.raises(CheckpointError) as caught:
        reader.text(1 << 70, "the title")
    assert str(file) in caught.value.message
    assert f"byte 8: the title needs {length} bytes and 4 are left" in caught.value.message


def test_a_text_above_its_limit_is_refused_even_when_the_file_has_it(file: Path) -> None:
    file.write_bytes(text("x" * 100))
    with BoundedReader(file) as reader, pytest.raises(CheckpointError, match="claims 100 bytes, more than the 10"):
        reader.text(10, "the title")


def test_text_that_is_not_utf8_is_refused(file: Path) -> None:
    file.write_bytes(text(b"\xff\xfe"))
    with BoundedReader(file) as reader, pytest.raises(CheckpointError, match="the title is not UTF-8"):
        reader.text(10, "the title")


@given(words=st.lists(st.text(max_size=300), max_size=60), ahead=st.integers(0, 40))
def test_runs_of_strings_are_read_and_skipped_alike(
    tmp_path_factory: pytest.TempPathFactory, words: list[str], ahead: int
) -> None:
    file = tmp_path_factory.mktemp("texts") / "file.bin"
    file.write_bytes(bytes(ahead) + b"".join(text(word) for word in words) + b"!")
    with BoundedReader(file) as reader:
        reader.read(ahead, "ahead")
        assert reader.texts(len(words), 1000, "words") == tuple(words)
        behind = reader.position
        assert reader.read(1, "mark") == b"!"
        reader.position = ahead
        reader.skip_texts(len(words), "words")
        assert reader.position == behind


def test_strings_across_and_beyond_the_read_window(file: Path) -> None:
    words = ["a" * 100_000, "b" * 500_000, "", "c" * 200_000, "d"] * 3
    file.write_bytes(b"".join(text(word) for word in words))
    with BoundedReader(file) as reader:
        assert reader.texts(len(words), 1 << 20, "words") == tuple(words)
        reader.position = 0
        reader.skip_texts(len(words), "words")
        assert reader.remaining == 0


@pytest.mark.parametrize("count", [3, 1000, 1 << 60])
def test_more_strings_than_the_file_holds(file: Path, count: int) -> None:
    file.write_bytes(text("one") + text("two") + b"\0" * 4)
    for read in ("skip_texts", "texts"):
        with BoundedReader(file) as reader, pytest.raises(CheckpointError, match="words"):
            reader.skip_texts(count, "words") if read == "skip_texts" else reader.texts(count, 100, "words")


def test_a_string_reaching_past_the_end_is_refused_by_skip(file: Path) -> None:
    file.write_bytes(struct.pack("<Q", 1 << 63) + bytes(20))
    with BoundedReader(file) as reader, pytest.raises(CheckpointError, match="past the end of the file"):
        reader.skip_texts(2, "words")


def test_missing_files_folders_and_pipes_are_refused_without_blocking(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, words in ((tmp_path / "none", "cannot be opened"), (tmp_path, "not a regular"), (pipe, "not a regular")):
        with pytest.raises(CheckpointError, match=words):
            BoundedReader(path)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("[" * 200_000, "nested too deeply"),
        ('{"a":' * 200_000, "nested too deeply"),
        ("[1]", "a JSON list where an object belongs"),
        ("{", "not valid JSON"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "'c' appears twice"),
        (r'{"a": "\ud800"}', "not valid JSON"),
        ('{"a": ' + "9" * 5000 + "}", "not valid JSON"),
        ('{"a": [' + "0," * 3_000_001 + "0]}", "more than the 3000000 allowed"),
    ],
)
def test_hostile_json_raises_one_kind_of_error(source: str, problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem) as caught:
        parse_json_object(source, where="here.json")
    assert caught.value.message.startswith("here.json")


def test_json_files_have_a_limit_and_may_begin_with_a_byte_order_mark(file: Path) -> None:
    file.write_bytes(b'\xef\xbb\xbf{"a": 1e400}')
    assert read_json_file(file) == {"a": float("inf")}
    with pytest.raises(CheckpointError, match="more than the 4 allowed"):
        read_json_file(file, max_bytes=4)
