"""The ASGI application: the routes, the layers around them, and the models' life as the lifespan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from pocketllm_server.config.settings import ServerSettings
from pocketllm_server.layers.order import with_layers
from pocketllm_server.models.client import ModelClient
from pocketllm_server.models.model import Model
from pocketllm_server.models.models import Models
from pocketllm_server.routes.table import routes
from pocketllm_server.service import Service

_CLOSE_DEADLINE_S = 5.0


def create_app(client: ModelClient, settings: ServerSettings | None = None) -> App:
    """The whole application over one model, for any ASGI server. Its lifespan starts and closes the model."""
    settings = settings or ServerSettings()
    model = Model(client, settings.served_model_name, max_queue=settings.max_queue)
    return App(Service(Models([model]), settings))


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
        """Start the models, keep watch over their readiness, and close them at the end."""
        models = list(self.service.models)
        await asyncio.gather(*(model.client.start() for model in models))
        watches = [asyncio.create_task(model.readiness.watch()) for model in models]
        try:
            yield
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)
            await asyncio.gather(*(model.client.close(_CLOSE_DEADLINE_S) for model in models))


def _router(app: App) -> Router:
    def lifespan(_: object) -> AbstractAsyncContextManager[None]:
        return app.lifespan()

    return Router(routes=routes(app.service), redirect_slashes=False, lifespan=lifespan)
