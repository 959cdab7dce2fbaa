"""The path that chat and completions share: bytes, fields, policy, normalisation, answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from pocketllm.types import Capabilities, GenerationRequest
from pocketllm_server.http_io import check_json, read_body
from pocketllm_server.service import Service
from pocketllm_server.streams import Endpoint, answer, stream
from pocketllm_server.wire.decode import decode_object, set_fields

# Decoding and checking this much takes about a millisecond; more goes to a thread, so that probes are answered.
MAX_INLINE_BYTES = 64 * 1024


class GenerateRoute(Endpoint):
    """Base of the generating routes; a subclass gives the wire Struct and how it becomes requests."""

    shape: type[msgspec.Struct]

    def __init__(self, service: Service) -> None:
        self._service = service

    def requests(self, fields: Mapping[str, Any], capabilities: Capabilities) -> Sequence[GenerationRequest]:
        """One request per prompt; fields that the engine does not act on are refused."""
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        settings = service.settings
        check_json(scope)
        data = await read_body(scope, receive, settings.max_body_bytes, settings.body_timeout_s)
        if len(data) <= MAX_INLINE_BYTES:
            fields, requests = self._read(data)
        else:
            fields, requests = await asyncio.to_thread(self._read, data)
        created = int(time.time())
        if not fields.get("stream"):
            await answer(service, self, requests, created, receive, send)
            return
        with_usage = bool(fields.get("stream_options", {}).get("include_usage"))
        await stream(service, self, requests, created, receive, send, with_usage=with_usage)

    def _read(self, data: bytes) -> tuple[Mapping[str, Any], Sequence[GenerationRequest]]:
        fields = set_fields(decode_object(data), self.shape)
        self._service.check_accepting()
        return fields, self.requests(fields, self._service.model.capabilities)
