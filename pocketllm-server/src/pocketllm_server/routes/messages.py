"""``POST /v1/messages`` and ``POST /v1/messages/count_tokens``: Anthropic's endpoints over the same pipeline."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.types import Message, Receive, Scope, Send

from pocketllm.errors import PocketLLMError
from pocketllm.fields import FieldRow
from pocketllm.types import GenerationRequest
from pocketllm_server.http_io import send_json
from pocketllm_server.prompt_access import prompt_tokens, prompts_of
from pocketllm_server.request_context import route_path
from pocketllm_server.routes.translated import TranslatedRoute
from pocketllm_server.wire import anthropic
from pocketllm_server.wire.anthropic_output import MessageLog, error_body
from pocketllm_server.wire.errors import HTTPError, describe
from pocketllm_server.wire.ignored_fields import ignored_fields_header

logger = logging.getLogger(__name__)


class Messages(TranslatedRoute):
    shape: type[msgspec.Struct] = anthropic.MessagesBody
    rows: Sequence[FieldRow] = anthropic.ROWS
    chat_names = anthropic.CHAT_NAMES
    prefix = "msg"

    def chat_body(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        return anthropic.chat_body(fields)

    def unenforced(self, fields: Mapping[str, Any]) -> list[str]:
        return anthropic.unenforced(fields)

    def log(self, fields: Mapping[str, Any], request: GenerationRequest, response_id: str, created: int) -> MessageLog:
        return MessageLog(response_id, self._service.settings.served_model_name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Errors leave in Anthropic's shape, which its clients read."""
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self.respond(scope, receive, watched)
        except (PocketLLMError, HTTPError) as error:
            if has_begun:
                raise
            status, body, headers = describe(error)
            if status >= 500:
                logger.warning("%s %s: %d, %s", scope["method"], scope["path"], status, error)
            self._service.metrics.errors.add(route_path(scope), str(body["code"] or body["type"]))
            await send_json(send, status, error_body(status, str(body["message"])), headers)

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)


class CountTokens(Messages):
    """How many tokens the same request would be prefilled with; nothing is generated."""

    shape = anthropic.CountTokensBody
    rows = anthropic.SHARED_ROWS

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        reading = await self.read(scope, receive)
        model = self._service.model
        tokens = await asyncio.to_thread(prompt_tokens, prompts_of(model), reading.request, model.capabilities)
        await send_json(send, 200, {"input_tokens": len(tokens)}, ignored_fields_header(reading.ignored))
