"""``POST /v1/responses`` and ``POST /v1/responses/input_tokens``: OpenAI's newer endpoint, stateless."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.types import Receive, Scope, Send

from pocketllm.types import GenerationRequest
from pocketllm_server.http_io import send_json
from pocketllm_server.prompt_access import prompt_tokens, prompts_of
from pocketllm_server.routes.translated import TranslatedRoute
from pocketllm_server.wire import responses_api
from pocketllm_server.wire.ignored_fields import ignored_fields_header
from pocketllm_server.wire.responses_output import ResponseLog, new_response


class Responses(TranslatedRoute):
    shape = responses_api.ResponsesBody
    rows = responses_api.ROWS
    chat_names = responses_api.CHAT_NAMES
    prefix = "resp"

    def chat_body(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return responses_api.chat_body(fields)

    def log(self, fields: Mapping[str, Any], request: GenerationRequest, response_id: str, created: int) -> ResponseLog:
        service = self._service
        params = request.sampling_params
        capabilities = service.model.capabilities
        in_force = capabilities.top_p if not capabilities.per_request_sampling else 1.0
        response = new_response(
            fields,
            response_id,
            created,
            service.settings.served_model_name,
            temperature=float(params.temperature),  # a default may be of a class of its own
            top_p=in_force if params.top_p is None else params.top_p,
        )
        return ResponseLog(response)


class ResponsesInputTokens(Responses):
    """How many tokens the same request would be prefilled with; nothing is generated."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reading = await self.read(scope, receive)
        model = self._service.model
        tokens = await asyncio.to_thread(prompt_tokens, prompts_of(model), reading.request, model.capabilities)
        body = {"object": "response.input_tokens", "input_tokens": len(tokens)}
        await send_json(send, 200, body, ignored_fields_header(reading.ignored))
