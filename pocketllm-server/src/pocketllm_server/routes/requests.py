"""``DELETE /v1/requests/<id>``: cancel by the response's id or the request's own."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from pocketllm.types import CancelReason
from pocketllm_server.service import Service
from pocketllm_server.transport.http_io import send_json
from pocketllm_server.wire.errors import HTTPError


class CancelRequest:
    """200 once for an active request, else 404. The engine observes it at its next step boundary."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path_params"]["request_id"]
        if not self._service.models.cancel(name, CancelReason.CLIENT):
            raise HTTPError(
                404,
                "No active request has this id: it is unknown, has ended or was cancelled.",
                code="request_not_found",
            )
        await send_json(send, 200, {"id": name, "object": "request", "cancelled": True})
