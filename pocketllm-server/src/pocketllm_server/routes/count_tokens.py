"""``POST /v1/responses/input_tokens`` and ``POST /v1/messages/count_tokens``: how many tokens the same request would be
prefilled with. Nothing is generated."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.types import Receive, Scope, Send

from pocketllm_server.models.prompt_tokens import prompt_tokens
from pocketllm_server.routes.reader import Dialect, Reader
from pocketllm_server.service import Service
from pocketllm_server.transport.http_io import send_json
from pocketllm_server.wire.ignored_fields import ignored_fields_header


class CountTokens:
    """``extra`` stands beside the number in the answer."""

    def __init__(self, service: Service, dialect: Dialect, extra: Mapping[str, str] | None = None) -> None:
        self._reader = Reader(service, dialect)
        self._extra = extra or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reading = await self._reader.read(scope, receive)
        client = reading.model.client
        tokens = await asyncio.to_thread(prompt_tokens, client.host.prompts, reading.requests[0], client.capabilities)
        body = {**self._extra, "input_tokens": len(tokens)}
        await send_json(send, 200, body, ignored_fields_header(reading.ignored))
