"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``: how their bodies are said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pocketllm.fields import FieldRow
from pocketllm_server.routes.translated import TranslatedDialect
from pocketllm_server.wire import messages_request


class MessagesDialect(TranslatedDialect):
    """``/v1/messages``: Anthropic's words for chat."""

    shape: type[msgspec.Struct] = messages_request.MessagesBody
    rows: Sequence[FieldRow] = messages_request.ROWS
    chat_names = messages_request.CHAT_NAMES

    def chat_body(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return messages_request.chat_body(fields)

    def without_effect(self, fields: Mapping[str, Any]) -> list[str]:
        return messages_request.unenforced(fields)


class CountTokensDialect(MessagesDialect):
    """``/v1/messages/count_tokens``: the same without what only an answer needs."""

    shape = messages_request.CountTokensBody
    rows = messages_request.SHARED_ROWS
