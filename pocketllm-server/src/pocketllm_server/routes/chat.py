"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pocketllm.fields import CHAT
from pocketllm.protocol import chat_request
from pocketllm.types import Capabilities, GenerationRequest
from pocketllm_server.endpoints import ChatReply
from pocketllm_server.routes.generate import GenerateRoute
from pocketllm_server.streams import Endpoint
from pocketllm_server.wire.request_bodies import ChatBody


class ChatCompletions(GenerateRoute):
    shape = ChatBody
    endpoint = CHAT

    def requests(self, fields: Mapping[str, Any], capabilities: Capabilities) -> Sequence[GenerationRequest]:
        # The server's own way of streaming tool calls holds unless the request says another.
        streaming = {"tool_call_streaming": self._service.settings.tool_call_streaming}
        return [chat_request({**streaming, **fields}, capabilities=capabilities)]

    def reply(self, fields: Mapping[str, Any], requests: Sequence[GenerationRequest]) -> Endpoint:
        return ChatReply(fields, requests, self._service.settings)
