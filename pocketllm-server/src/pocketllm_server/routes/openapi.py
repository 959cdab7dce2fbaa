"""``GET /openapi.json``."""

from __future__ import annotations

import msgspec
from starlette.types import Receive, Scope, Send

from pocketllm_server.routes.openapi_document import build_document
from pocketllm_server.service import Service
from pocketllm_server.transport.http_io import send_bytes


class OpenAPI:
    """Built at the first request and kept: it depends on nothing that changes."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._document: bytes | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._document is None:
            self._document = msgspec.json.encode(build_document(self._service.settings.root_path))
        await send_bytes(send, 200, self._document, b"application/json")
