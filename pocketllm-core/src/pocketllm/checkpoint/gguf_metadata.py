"""GGUF key/values: small ones held, vocabulary-sized ones decoded from the file when asked for."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from pocketllm.checkpoint.bounded_file import BoundedReader
from pocketllm.checkpoint.gguf_types import ARRAY, BOOL, LAYOUTS, SCALARS, STRING
from pocketllm.errors import CheckpointError

MAX_KEYS = 1 << 16
MAX_KEY_BYTES = (1 << 16) - 1
MAX_STRING_BYTES = 16 << 20
MAX_ARRAY_DEPTH = 3

# Over all arrays of one header. A 262 144-token vocabulary with its scores, types and merges has 1.3 million.
MAX_ARRAY_ITEMS = 1 << 23

_HELD_STRING_BYTES = 1024


class _Span(msgspec.Struct, frozen=True):
    """A value left in the file: its type, its payload's place, and for an array its length (-1 for a string)."""

    kind: int
    start: int
    length: int


class GgufMetadata(Mapping[str, object]):
    """Read-only metadata of one GGUF file, in file order.

    Numbers, booleans and short strings are in memory; long strings and arrays (as tuples) are read from the file at
    each access, so keep what you use. ``path`` is the file. Safe from any thread. An access raises CheckpointError
    when the file changed.
    """

    def __init__(self, path: Path, file_bytes: int, values: dict[str, object]) -> None:
        self.path = path
        self._file_bytes = file_bytes
        self._values = values

    def __getitem__(self, key: str) -> object:
        value = self._values[key]
        if not isinstance(value, _Span):
            return value
        with self._open_at(value) as reader:
            if value.kind == STRING:
                return reader.text(MAX_STRING_BYTES, f"the value of {key!r}")
            return _read_array(reader, f"the value of {key!r}")

    def texts_at(self, key: str, indices: Iterable[int]) -> list[str]:
        """Some strings of an array of strings, without decoding the others.

        Args:
            indices: ascending, each below :meth:`array_length`.
        """
        what = f"the value of {key!r}"
        value = self._values.get(key)
        if not isinstance(value, _Span) or value.kind != ARRAY:
            raise CheckpointError(f"{self.path}: {key!r} is not an array of str.")
        with self._open_at(value) as reader:
            kind, _ = _array_head(reader, what)
            if kind != STRING:
                raise CheckpointError(f"{self.path}: {key!r} is not an array of str.")
            found: list[str] = []
            position = 0
            for index in indices:
                reader.skip_texts(index - position, what)
                found.append(reader.text(MAX_STRING_BYTES, f"string {index} of {what}"))
                position = index + 1
            return found

    @contextmanager
    def _open_at(self, span: _Span) -> Iterator[BoundedReader]:
        with BoundedReader(self.path) as reader:
            if reader.size != self._file_bytes:
                reader.fail(f"the file had {self._file_bytes} bytes when it was opened and has {reader.size} now")
            reader.position = span.start
            yield reader

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.path.name}: {len(self)} keys>"

    def array_length(self, key: str) -> int | None:
        """The number of items of an array without decoding it; None when the key is absent or holds no array."""
        value = self._values.get(key)
        return value.length if isinstance(value, _Span) and value.kind == ARRAY else None

    def array(self, key: str, item_type: type) -> tuple[object, ...]:
        """An array whose items are all of ``item_type``; CheckpointError when absent or of another type."""
        items = self.get(key)
        if not isinstance(items, tuple) or (items and type(items[0]) is not item_type):
            raise CheckpointError(f"{self.path}: {key!r} is not an array of {item_type.__name__}.")
        return items


def read_metadata(reader: BoundedReader, count: int) -> GgufMetadata:
    """Read ``count`` key/value pairs at the reader's position, leaving it behind the last."""
    smallest_pair = 8 + 4 + 1
    reader.need(smallest_pair * count, f"{count} metadata entries")
    if count > MAX_KEYS:
        reader.fail(f"the header claims {count} metadata entries, more than the {MAX_KEYS} allowed")
    values: dict[str, object] = {}
    budget = [MAX_ARRAY_ITEMS]
    for index in range(count):
        key = reader.text(MAX_KEY_BYTES, f"metadata key {index}")
        if key in values:
            reader.fail(f"the metadata key {key!r} appears twice")
        what = f"the value of {key!r}"
        kind = reader.u32(f"the type of {key!r}")
        start = reader.position
        if kind == STRING:
            values[key] = _read_or_leave_string(reader, what, start)
        elif kind == ARRAY:
            length = _skip_array(reader, what, budget, depth=1)
            values[key] = _Span(ARRAY, start, length)
        else:
            values[key] = _read_scalar(reader, kind, what)
    return GgufMetadata(reader.path, reader.size, values)


def _read_or_leave_string(reader: BoundedReader, what: str, start: int) -> object:
    length = reader.u64(f"the length of {what}")
    if length > MAX_STRING_BYTES:
        reader.fail(f"{what} claims {length} bytes, more than the {MAX_STRING_BYTES} allowed")
    reader.skip(length, what)
    if length > _HELD_STRING_BYTES:
        return _Span(STRING, start, -1)
    reader.position = start
    return reader.text(MAX_STRING_BYTES, what)


def _read_scalar(reader: BoundedReader, kind: int, what: str) -> object:
    layout = LAYOUTS.get(kind)
    if layout is None:
        reader.fail(f"{what} has the unknown type {kind}")
    (value,) = reader.unpack(layout, what)
    return _checked_bool(reader, value, what) if kind == BOOL else value


def _checked_bool(reader: BoundedReader, value: float, what: str) -> bool:
    if value not in (0, 1):
        reader.fail(f"{what} is a boolean with the byte {value}")
    return bool(value)


def _array_head(reader: BoundedReader, what: str) -> tuple[int, int]:
    kind = reader.u32(f"the item type of {what}")
    length = reader.u64(f"the length of {what}")
    if kind not in SCALARS and kind not in (STRING, ARRAY):
        reader.fail(f"{what} is an array of the unknown type {kind}")
    return kind, length


def _skip_array(reader: BoundedReader, what: str, budget: list[int], depth: int) -> int:
    """Step over an array and return its length. ``budget`` holds the items the header may still have."""
    if depth > MAX_ARRAY_DEPTH:
        reader.fail(f"{what} is an array nested more than {MAX_ARRAY_DEPTH} deep")
    kind, length = _array_head(reader, what)
    smallest_item = 12 if kind == ARRAY else 8 if kind == STRING else LAYOUTS[kind].size
    reader.need(smallest_item * length, f"{what}, an array of {length} items,")
    budget[0] -= length
    if budget[0] < 0:
        reader.fail(f"{what} brings the array items of this header above the {MAX_ARRAY_ITEMS} allowed")
    if kind == STRING:
        reader.skip_texts(length, what)
    elif kind == ARRAY:
        for _ in range(length):
            _skip_array(reader, what, budget, depth + 1)
    else:
        reader.skip(smallest_item * length, what)
    return length


def _read_array(reader: BoundedReader, what: str) -> tuple[object, ...]:
    """Decode an array that :func:`_skip_array` has already been over, so its counts are known to be sane."""
    kind, length = _array_head(reader, what)
    if kind == STRING:
        return reader.texts(length, MAX_STRING_BYTES, what)
    if kind == ARRAY:
        return tuple(_read_array(reader, what) for _ in range(length))
    raw = reader.read(LAYOUTS[kind].size * length, what)
    items = struct.unpack(f"<{length}{SCALARS[kind][0]}", raw)
    return tuple(_checked_bool(reader, item, what) for item in items) if kind == BOOL else items
