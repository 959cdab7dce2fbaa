"""What the endpoints share whose requests are put into chat's words: policy rows, unread fields, errors put back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pocketllm.errors import ConfigurationError, PocketLLMError
from pocketllm.fields import CHAT, NEVER, FieldRow, rows, unsupported
from pocketllm.types import Capabilities


class DialectRow(FieldRow, frozen=True, kw_only=True):
    """A field of another dialect. ``as_chat`` is the chat field whose policy its values follow; empty: none."""

    as_chat: str = ""

    @property
    def capability(self) -> str:
        """Without it the field has only its neutral value; chat's table is what refuses the others."""
        return rows(CHAT)[self.as_chat].needs if self.as_chat else ""


def refused(name: str, doc: str, instead: str, remedy: str, neutral: Sequence[Any] = ()) -> DialectRow:
    """A field, or ``outer.inner``, of which only ``neutral`` values are accepted."""
    return DialectRow(
        name=name, endpoints=(), doc=doc, needs=NEVER, neutral=tuple(neutral), instead=instead, remedy=remedy
    )


def acted_on(name: str, doc: str, as_chat: str = "") -> DialectRow:
    return DialectRow(name=name, endpoints=(), doc=doc, as_chat=as_chat)


def inert(name: str, doc: str) -> DialectRow:
    """A field that cannot change the answer."""
    return DialectRow(name=name, endpoints=(), doc=doc, inert=True)


def check_rows(fields: Mapping[str, Any], table: Iterable[FieldRow]) -> None:
    """Refuse the first value that would change the answer and that nobody acts on.

    Raises:
        UnsupportedFeatureError: ``param`` is the row's name.
    """
    for row in table:
        if not row.needs:
            continue
        value: Any = fields
        for key in row.name.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None and not any(
            value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in row.neutral
        ):
            raise unsupported(row.name, value, row.instead, row.remedy)


def supported_rows(table: Iterable[DialectRow], capabilities: Capabilities) -> list[str]:
    """Names of the fields of ``table`` that are acted on, in their order."""
    return [
        row.name
        for row in table
        if not row.inert and not row.needs and (not row.capability or capabilities.supports(row.capability))
    ]


def in_words_of(error: PocketLLMError, names: Mapping[str, str]) -> PocketLLMError:
    """``error`` about a chat field, as one about the field of the dialect that led to it."""
    name = names.get(error.param or "")
    if error.param is None or name is None:
        return error
    message = error.message.replace(f'"{error.param}"', f'"{name}"')
    for start in (f"{error.param}[", f"{error.param}.", f"{error.param} "):
        if message.startswith(start):
            message = name + message[len(error.param) :]
    return type(error)(message, param=name)


def object_of(value: Any, where: str, param: str) -> dict[str, Any]:
    """``value`` as a JSON object.

    Raises:
        ConfigurationError: it is something else.
    """
    if not isinstance(value, dict):
        raise ConfigurationError(f'"{where}" is not an object.', param=param)
    return value


def text_of(item: Mapping[str, Any], key: str, where: str, param: str) -> str:
    """A required string of a nested object.

    Raises:
        ConfigurationError: it is missing or not a string.
    """
    value = item.get(key)
    if not isinstance(value, str):
        raise ConfigurationError(f'"{where}.{key}" is missing or not a string.', param=param)
    return value


def check_tool_options(tool: Mapping[str, Any], where: str, options: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse the options of one tool whose value is not among the neutral ones.

    Raises:
        UnsupportedFeatureError: ``param`` is "tools".
    """
    for name, neutral in options.items():
        value = tool.get(name)
        if value is not None and value not in neutral:
            error = unsupported(
                f"{where}.{name}", value, "a tool is offered to the model by name, text and schema", f'Remove "{name}"'
            )
            error.param = "tools"
            raise error
