"""The bound on the headers of a request."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from pocketllm_server.wire.errors import HTTPError


class HeaderLimit:
    """ASGI middleware: 431 for a request whose headers are larger than ``max_bytes``."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            num_bytes = sum(len(name) + len(value) for name, value in scope["headers"])
            if num_bytes > self._max_bytes:
                raise HTTPError(
                    431,
                    f"The headers have {num_bytes} bytes, above the {self._max_bytes} that this server takes: send "
                    "fewer, such as smaller cookies.",
                    code="headers_too_large",
                )
        await self._app(scope, receive, send)
