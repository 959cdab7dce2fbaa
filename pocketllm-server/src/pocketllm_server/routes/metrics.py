"""``/metrics``: Prometheus text."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from pocketllm_server.metrics.page import CONTENT_TYPE, render
from pocketllm_server.service import Service
from pocketllm_server.transport.http_io import send_bytes


class MetricsPage:
    """Prometheus' text, of this moment."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        page = render(service.metrics, [model.sample() for model in service.models])
        await send_bytes(send, 200, page, CONTENT_TYPE)
