"""``POST /v1/responses``: how its body is said. Nothing is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pocketllm_server.routes.translated import TranslatedDialect
from pocketllm_server.wire import responses_request


class ResponsesDialect(TranslatedDialect):
    """``/v1/responses``: OpenAI's newer words for chat."""

    shape = responses_request.ResponsesBody
    rows = responses_request.ROWS
    chat_names = responses_request.CHAT_NAMES

    def chat_body(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return responses_request.chat_body(fields)
