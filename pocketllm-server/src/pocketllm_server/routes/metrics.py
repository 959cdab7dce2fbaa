"""``/metrics``: Prometheus text."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from pocketllm_server.http_io import send_bytes
from pocketllm_server.metrics import CONTENT_TYPE
from pocketllm_server.service import Service


class MetricsPage:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        page = service.metrics.render(service.model.stats(), len(service.active))
        await send_bytes(send, 200, page, CONTENT_TYPE)
