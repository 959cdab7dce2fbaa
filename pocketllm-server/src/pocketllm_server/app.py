"""The ASGI application: the routes, the layers around them, and the model's life as the lifespan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from pocketllm_server.layers import with_layers
from pocketllm_server.routes.chat import ChatCompletions
from pocketllm_server.routes.completions import Completions
from pocketllm_server.routes.messages import CountTokens, Messages
from pocketllm_server.routes.metrics import MetricsPage
from pocketllm_server.routes.models import Models
from pocketllm_server.routes.openapi import OpenAPI
from pocketllm_server.routes.probes import Alive, Health, Ready
from pocketllm_server.routes.requests import CancelRequest
from pocketllm_server.routes.responses import Responses, ResponsesInputTokens
from pocketllm_server.routes.tokenize import ApplyTemplate, Detokenize, Tokenize
from pocketllm_server.served_model import ServedModel
from pocketllm_server.service import Service
from pocketllm_server.settings import ServerSettings

_CLOSE_DEADLINE_S = 5.0


def create_app(model: ServedModel, settings: ServerSettings | None = None) -> App:
    """The whole application over one model, for any ASGI server. Its lifespan starts and closes the model."""
    return App(Service(model, settings or ServerSettings()))


class App:
    """An ASGI application. ``service`` is what a host process drains before it stops the server."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._asgi: ASGIApp = with_layers(_router(self), service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # with it the router raises what it finds wrong, and Failures gives that our shape
        await self._asgi(scope, receive, send)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Start the model, keep watch over its readiness, and close it at the end."""
        service = self.service
        await service.model.start()
        watch = asyncio.create_task(service.readiness.watch())
        try:
            yield
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await service.model.close(_CLOSE_DEADLINE_S)


def _router(app: App) -> Router:
    service = app.service

    def lifespan(_: object) -> AbstractAsyncContextManager[None]:
        return app.lifespan()

    return Router(
        routes=[
            Route("/health", Health(service), methods=["GET"]),
            Route("/alive", Alive(service), methods=["GET"]),
            Route("/ready", Ready(service), methods=["GET"]),
            Route("/metrics", MetricsPage(service), methods=["GET"]),
            Route("/v1/models", Models(service), methods=["GET"]),
            Route("/v1/chat/completions", ChatCompletions(service), methods=["POST"]),
            Route("/v1/completions", Completions(service), methods=["POST"]),
            Route("/v1/requests/{request_id:path}", CancelRequest(service), methods=["DELETE"]),
            Route("/v1/responses", Responses(service), methods=["POST"]),
            Route("/v1/responses/input_tokens", ResponsesInputTokens(service), methods=["POST"]),
            Route("/v1/messages", Messages(service), methods=["POST"]),
            Route("/v1/messages/count_tokens", CountTokens(service), methods=["POST"]),
            Route("/tokenize", Tokenize(service), methods=["POST"]),
            Route("/detokenize", Detokenize(service), methods=["POST"]),
            Route("/apply-template", ApplyTemplate(service), methods=["POST"]),
            Route("/openapi.json", OpenAPI(service), methods=["GET"]),
        ],
        redirect_slashes=False,
        lifespan=lifespan,
    )
