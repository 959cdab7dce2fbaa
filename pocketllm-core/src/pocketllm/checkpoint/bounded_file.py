"""Reading files whose contents nobody vouches for: every length is compared with the file before memory is taken."""

from __future__ import annotations

import json
import os
import stat
import struct
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NoReturn, Self

from pocketllm.errors import CheckpointError

_WINDOW_BYTES = 1 << 18

# JSON text can need some twenty times its size as Python objects; the number of commas and brackets bounds them.
_MAX_JSON_MARKS = 3_000_000

_U64 = struct.Struct("<Q")


def regular_file_size(path: Path) -> int:
    """The size in bytes of a regular file.

    Raises:
        CheckpointError: the file is missing, unreadable, or a folder, pipe or device (opening a pipe would block).
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be opened ({error}). Check the path and its permissions.") from error
    if not stat.S_ISREG(status.st_mode):
        raise CheckpointError(f"{path}: is not a regular file. Give the path of a checkpoint file.")
    return status.st_size


class BoundedReader:
    """Little-endian values read in order from one file, never past its end.

    ``position`` is the absolute byte offset of the next read. Not thread-safe; each reader owns its file handle.
    Every failure is a :class:`CheckpointError` that names the file, the byte and what was being read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = regular_file_size(path)
        self.position = 0
        self._window = b""
        self._window_start = 0
        try:
            self._file: BinaryIO = open(path, "rb")  # noqa: SIM115 - closed by __exit__
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be opened ({error}). Check its permissions.") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()

    @property
    def remaining(self) -> int:
        return self.size - self.position

    def fail(self, problem: str) -> NoReturn:
        """Raise the one error for this file at the present position."""
        raise CheckpointError(
            f"{self.path}: byte {self.position}: {problem}. The file is damaged, incomplete or of another kind; "
            "fetch it again and compare its size and checksum with the publisher's."
        )

    def need(self, num_bytes: int, what: str) -> None:
        """Check that ``num_bytes`` more bytes exist, before any are allocated."""
        if num_bytes > self.remaining:
            self.fail(f"{what} needs {num_bytes} bytes and {self.remaining} are left in the file")

    def read(self, num_bytes: int, what: str) -> bytes:
        self.need(num_bytes, what)
        start = self.position - self._window_start
        if start < 0 or start + num_bytes > len(self._window):
            self._fill(num_bytes, what)
            start = 0
        self.position += num_bytes
        return self._window[start : start + num_bytes]

    def unpack(self, layout: struct.Struct, what: str) -> tuple[int | float, ...]:
        return layout.unpack(self.read(layout.size, what))

    def u32(self, what: str) -> int:
        return int.from_bytes(self.read(4, what), "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self.read(8, what), "little")

    def skip(self, num_bytes: int, what: str) -> None:
        self.need(num_bytes, what)
        self.position += num_bytes

    def text(self, max_bytes: int, what: str) -> str:
        """A u64 length and that many bytes of UTF-8."""
        length = self.u64(f"the length of {what}")
        if length > max_bytes:
            self.fail(f"{what} claims {length} bytes, more than the {max_bytes} allowed")
        raw = self.read(length, what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self.fail(f"{what} is not UTF-8 ({error.reason})")

    def skip_texts(self, count: int, what: str) -> None:
        """Step over ``count`` length-prefixed strings without decoding them; about 0.1 us each."""
        self.need(8 * count, what)
        unpack_from = _U64.unpack_from
        while count:
            if self.remaining < 8:
                self.fail(f"{what} is cut off with {count} strings to come")
            start = self.position - self._window_start
            if start < 0 or start + 8 > len(self._window):
                self._fill(8, what)
                start = 0
            window, last = self._window, len(self._window) - 8
            while count and start <= last:
                start += 8 + unpack_from(window, start)[0]
                count -= 1
            self.position = self._window_start + start
            if self.position > self.size:
                self.fail(f"a string of {what} reaches past the end of the file ({self.size} bytes)")

    def texts(self, count: int, max_bytes: int, what: str) -> tuple[str, ...]:
        """``count`` strings as :meth:`text` reads them, several times faster for a vocabulary of short ones."""
        self.need(8 * count, what)
        unpack_from = _U64.unpack_from
        found: list[str] = []
        while len(found) < count:
            start = self.position - self._window_start
            window, last = self._window, len(self._window) - 8
            try:
                for _ in range(count - len(found) if start >= 0 else 0):
                    if start > last:
                        break
                    begin = start + 8
                    end = begin + unpack_from(window, start)[0]
                    if end > last + 8:
                        break
                    found.append(str(window[begin:end], "utf-8"))
                    start = end
            except UnicodeDecodeError as error:
                self.position = self._window_start + start
                self.fail(f"string {len(found)} of {what} is not UTF-8 ({error.reason})")
            self.position = self._window_start + start
            if len(found) < count:
                # The next string straddles the window's end or is longer than the window.
                found.append(self.text(max_bytes, f"string {len(found)} of {what}"))
        return tuple(found)

    def _fill(self, num_bytes: int, what: str) -> None:
        try:
            self._file.seek(self.position)
            window = self._file.read(max(num_bytes, min(_WINDOW_BYTES, self.remaining)))
        except OSError as error:
            self.fail(f"{what} could not be read ({error})")
        if len(window) < num_bytes:
            self.fail(f"{what} could not be read: the file became shorter meanwhile")
        self._window, self._window_start = window, self.position


def read_text_file(path: Path, *, max_bytes: int) -> str:
    """A whole UTF-8 file of at most ``max_bytes`` bytes; CheckpointError when it is larger or not UTF-8."""
    with BoundedReader(path) as reader:
        if reader.size > max_bytes:
            reader.fail(f"the file has {reader.size} bytes, more than the {max_bytes} allowed")
        raw = reader.read(reader.size, "the file")
        try:
            return raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            reader.fail(f"not UTF-8 ({error.reason} at byte {error.start})")


def read_json_file(path: Path, *, max_bytes: int = 16 << 20) -> dict[str, object]:
    """The JSON object in a file; CheckpointError when it is anything else."""
    return parse_json_object(read_text_file(path, max_bytes=max_bytes), where=str(path))


def parse_json_object(text: str, *, where: str) -> dict[str, object]:
    """Parse one JSON object, refusing repeated names, too many parts and nesting past the interpreter's limit.

    Args:
        text: the JSON text.
        where: the file, and the part of it, for the error message.

    Raises:
        CheckpointError: the text is not such an object.
    """
    marks = sum(text.count(mark) for mark in ",[{")
    if marks > _MAX_JSON_MARKS:
        raise CheckpointError(f"{where}: JSON with {marks} parts, more than the {_MAX_JSON_MARKS} allowed.")
    try:
        value = json.loads(text, object_pairs_hook=_unique_names)
        if "\\u" in text:  # a lone surrogate escape parses into text that no UTF-8 writer accepts later on
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise CheckpointError(f"{where}: JSON nested too deeply.") from None
    except ValueError as error:
        raise CheckpointError(f"{where}: not valid JSON ({error}). Fetch the file again.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{where}: holds a JSON {type(value).__name__} where an object belongs.")
    return value


def _unique_names(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = sorted(name for name, _ in pairs)
        repeated = next(name for name, after in pairwise(names) if name == after)
        raise ValueError(f"the name {repeated[:200]!r} appears twice in one object")
    return value
