"""Writes the JSON object of a call's arguments, one value after another, while their text is still arriving."""

from __future__ import annotations

from collections.abc import Callable

from pocketllm.text.tool_calls.call_tail import CallSink
from pocketllm.text.tool_calls.typing_rules import json_string


class ArgumentWriter:
    """Arguments of one call, for syntaxes that write each value on its own. Passes pieces on to ``sink``."""

    def __init__(self, sink: CallSink) -> None:
        self._sink = sink
        self._opening = "{"
        self._convert: Callable[[str], str] | None = None
        self._pieces: list[str] = []

    def begin(self, key: str, convert: Callable[[str], str] | None) -> None:
        """A value begins. ``convert`` makes JSON of its complete text; None: it is a string and leaves as it comes."""
        self._sink.arguments(f"{self._opening}{json_string(key)}: ")
        self._opening = ", "
        self._convert = convert
        if convert is None:
            self._sink.arguments('"')

    def add(self, text: str) -> None:
        """More text of the current value."""
        if self._convert is None:
            self._sink.arguments(json_string(text)[1:-1])
        else:
            self._pieces.append(text)

    def end(self) -> None:
        """The current value is complete."""
        if self._convert is None:
            self._sink.arguments('"')
        else:
            self._sink.arguments(self._convert("".join(self._pieces)))
            self._pieces.clear()

    def close(self) -> None:
        """There are no more values."""
        self._sink.arguments("{}" if self._opening == "{" else "}")


def join_arguments(values: dict[str, str]) -> str:
    """The same object from complete values, each already JSON text."""
    return "{" + ", ".join(f"{json_string(key)}: {value}" for key, value in values.items()) + "}"
