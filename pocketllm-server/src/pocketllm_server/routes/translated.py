"""Endpoints that are chat in other words: a body is checked, and said in the words of ``/v1/chat/completions``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from pocketllm.errors import ConfigurationError, PocketLLMError, UnsupportedFeatureError
from pocketllm.fields import FieldRow, shown
from pocketllm.protocol import chat_request
from pocketllm.types import Capabilities, GenerationRequest
from pocketllm_server.routes.reader import Dialect
from pocketllm_server.wire.dialect import check_rows, in_words_of


class TranslatedDialect(Dialect):
    """A subclass gives the wire Struct, its rows, and the words in both directions."""

    rows: Sequence[FieldRow]
    chat_names: Mapping[str, str]
    """Chat's name of a field to this endpoint's, where they differ."""

    @abstractmethod
    def chat_body(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The chat request that ``fields`` stand for."""

    def refusal(self, name: str) -> PocketLLMError:
        return ConfigurationError(
            f"{shown(name)} is not acted on, and this server is strict about fields: remove it.", param=name[:80]
        )

    def requests(self, fields: Mapping[str, Any], capabilities: Capabilities) -> Sequence[GenerationRequest]:
        check_rows(fields, self.rows)
        chat = self.chat_body(fields)
        if self._settings.tool_call_streaming == "eager":
            chat.setdefault("tool_call_streaming", "eager")
        try:
            return [chat_request(chat, capabilities=capabilities)]
        except (ConfigurationError, UnsupportedFeatureError) as error:
            raise self.in_its_words(error) from None

    def in_its_words(self, error: PocketLLMError) -> PocketLLMError:
        return in_words_of(error, self.chat_names)
