"""Errors become answers in the shape their client reads; what escaped to the server would be a bare 500."""

from __future__ import annotations

import logging

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from pocketllm.errors import PocketLLMError
from pocketllm_server.layers.route_labels import RouteLabels
from pocketllm_server.metrics.http import HTTPMetrics
from pocketllm_server.transport.http_io import ClientGoneError, send_json
from pocketllm_server.transport.request_context import current_request, route_path
from pocketllm_server.wire.errors import Headers, HTTPError, describe, error_object
from pocketllm_server.wire.messages_answer import error_body

logger = logging.getLogger(__name__)

_ANTHROPIC = "/v1/messages"
"""Paths whose clients read Anthropic's error shape."""

_ROUTER_MESSAGES = {
    404: "There is no such path here: GET /v1/models says what is served.",
    405: "This path does not take this method: the header Allow lists those it takes.",
}


class Failures:
    """ASGI middleware, inside Edge. An answer that has begun cannot be replaced: it is broken off, and the log says
    why."""

    def __init__(self, app: ASGIApp, metrics: HTTPMetrics, labels: RouteLabels) -> None:
        self._app = app
        self._metrics = metrics
        self._labels = labels

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        except ClientGoneError:
            raise
        except Exception as error:  # whatever is wrong in here, the client gets an answer and the log the reason
            status, body, headers = _describe(error)
            self._metrics.errors.add(self._labels.of(scope), str(body["code"] or body["type"]))
            if status >= 500:
                unexpected = not isinstance(error, PocketLLMError)
                logger.warning("%s %s: %d, %s", scope["method"], scope["path"], status, error, exc_info=unexpected)
            request = current_request()
            if request is not None and request.status:
                return
            if route_path(scope).startswith(_ANTHROPIC):
                await send_json(send, status, error_body(status, str(body["message"])), headers)
            else:
                await send_json(send, status, {"error": body}, headers)


def _describe(error: Exception) -> tuple[int, dict[str, object], Headers]:
    if isinstance(error, PocketLLMError | HTTPError):
        return describe(error)
    if isinstance(error, HTTPException):  # the router's own: no such path, or another method
        headers = tuple((name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items())
        message = _ROUTER_MESSAGES.get(error.status_code, str(error.detail))
        return error.status_code, error_object(error.status_code, message), headers
    message = "The server failed on this request; its log says why."
    return 500, error_object(500, message, code="internal_error"), ()
