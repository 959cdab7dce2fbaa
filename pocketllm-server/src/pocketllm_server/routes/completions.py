"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pocketllm.fields import COMPLETIONS
from pocketllm.protocol import completion_request
from pocketllm.types import Capabilities, GenerationRequest
from pocketllm_server.endpoints import CompletionReply
from pocketllm_server.routes.generate import GenerateRoute
from pocketllm_server.streams import Endpoint
from pocketllm_server.wire.request_bodies import CompletionBody


class Completions(GenerateRoute):
    shape = CompletionBody
    endpoint = COMPLETIONS

    def requests(self, fields: Mapping[str, Any], capabilities: Capabilities) -> Sequence[GenerationRequest]:
        return completion_request(fields, capabilities=capabilities)

    def reply(self, fields: Mapping[str, Any], requests: Sequence[GenerationRequest]) -> Endpoint:
        return CompletionReply(fields, requests, self._service.model)
