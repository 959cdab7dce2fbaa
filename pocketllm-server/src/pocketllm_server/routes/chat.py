"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pocketllm.protocol import chat_request
from pocketllm.types import Capabilities, GenerationRequest, GenerationResult
from pocketllm_server.routes.generate import GenerateRoute
from pocketllm_server.sse import ChatChunkWriter, ChunkWriter
from pocketllm_server.wire.request_bodies import ChatBody
from pocketllm_server.wire.responses import ChatCompletion, chat_choice, total_usage


class ChatCompletions(GenerateRoute):
    shape = ChatBody
    prefix = "chatcmpl"

    def requests(self, fields: Mapping[str, Any], capabilities: Capabilities) -> Sequence[GenerationRequest]:
        return [chat_request(fields, capabilities=capabilities)]

    def body(self, generation_id: str, created: int, model: str, results: Sequence[GenerationResult], n: int) -> Any:
        (result,) = results
        choices = [chat_choice(choice.index, choice) for choice in result.choices]
        return ChatCompletion(
            id=generation_id, created=created, model=model, choices=choices, usage=total_usage(results)
        )

    def chunks(self, generation_id: str, created: int, model: str, *, with_usage: bool) -> ChunkWriter:
        return ChatChunkWriter(generation_id, created, model, with_usage=with_usage)
