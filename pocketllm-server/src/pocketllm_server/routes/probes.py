"""``/health``, ``/alive``, ``/ready``: answered from the state of the default model's host, never from its engine."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from pocketllm_server.models.readiness import Verdict
from pocketllm_server.service import Service
from pocketllm_server.transport.http_io import send_json

_DRAINING = Verdict(False, "draining", "The server is shutting down and takes no new requests.")


class Alive:
    """200 while this process answers at all."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, {"status": "alive"})


class Health:
    """The host's state; 503 once the engine has failed or is closed, 200 while it loads, answers, sleeps or drains."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        health = self._service.models.default.client.health()
        status = 503 if health.status == "failed" or not health.alive else 200
        await send_json(send, status, health.as_dict())


class Ready:
    """200 once the engine has run a forward pass; else 503 and, in ``reason``, one word that says why not."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        model = self._service.models.default
        verdict = _DRAINING if self._service.draining else model.readiness.verdict()
        health = model.client.health()
        body = {
            **health.details,
            "status": "ready" if verdict.ready else "not_ready",
            "reason": verdict.reason,
            "message": verdict.message,
            "model": model.name,
            "backend": health.backend,
        }
        if verdict.ready:
            await send_json(send, 200, body)
        else:
            await send_json(send, 503, body, ((b"retry-after", b"1"),))
