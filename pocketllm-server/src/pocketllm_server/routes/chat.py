"""``POST /v1/chat/completions``: how its body is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pocketllm.errors import PocketLLMError
from pocketllm.fields import CHAT, unknown_field
from pocketllm.protocol import chat_request
from pocketllm.types import Capabilities, GenerationRequest
from pocketllm_server.routes.reader import Dialect
from pocketllm_server.wire.completions_request import ChatBody


class ChatDialect(Dialect):
    """``/v1/chat/completions``: the words of core itself."""

    shape = ChatBody

    def refusal(self, name: str) -> PocketLLMError:
        return unknown_field(name, CHAT)

    def requests(self, fields: Mapping[str, Any], capabilities: Capabilities) -> Sequence[GenerationRequest]:
        # The server's own way of streaming tool calls holds unless the request says another.
        streaming = {"tool_call_streaming": self._settings.tool_call_streaming}
        return [chat_request({**streaming, **fields}, capabilities=capabilities)]
