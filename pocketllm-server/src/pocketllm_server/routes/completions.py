"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pocketllm.protocol import completion_request
from pocketllm.types import Capabilities, GenerationRequest, GenerationResult
from pocketllm_server.routes.generate import GenerateRoute
from pocketllm_server.sse import ChunkWriter, CompletionChunkWriter
from pocketllm_server.wire.request_bodies import CompletionBody
from pocketllm_server.wire.responses import Completion, completion_choice, total_usage


class Completions(GenerateRoute):
    shape = CompletionBody
    prefix = "cmpl"

    def requests(self, fields: Mapping[str, Any], capabilities: Capabilities) -> Sequence[GenerationRequest]:
        return completion_request(fields, capabilities=capabilities)

    def body(self, generation_id: str, created: int, model: str, results: Sequence[GenerationResult], n: int) -> Any:
        choices = [
            completion_choice(position * n + choice.index, choice)
            for position, result in enumerate(results)
            for choice in result.choices
        ]
        return Completion(id=generation_id, created=created, model=model, choices=choices, usage=total_usage(results))

    def chunks(self, generation_id: str, created: int, model: str, *, with_usage: bool) -> ChunkWriter:
        return CompletionChunkWriter(generation_id, created, model, with_usage=with_usage)
