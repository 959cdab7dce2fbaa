"""The order of the layers around the routes, outermost first."""

from __future__ import annotations

from starlette.routing import Router
from starlette.types import ASGIApp

from pocketllm_server.layers.auth import ApiKeys
from pocketllm_server.layers.cors import with_cors
from pocketllm_server.layers.edge import Edge
from pocketllm_server.layers.failures import Failures
from pocketllm_server.layers.limits import HeaderLimit
from pocketllm_server.layers.route_labels import RouteLabels
from pocketllm_server.service import Service


def with_layers(router: Router, service: Service) -> ASGIApp:
    """The application as a server runs it.

    Edge (id, log, count) > CORS (answers preflights, which carry no key, and marks errors too) > errors in our shape >
    size of the headers > API keys > routes.
    """
    settings = service.settings
    labels = RouteLabels(router.routes)
    app: ASGIApp = ApiKeys(router, settings.api_keys) if settings.api_keys else router
    app = HeaderLimit(app, settings.max_header_bytes)
    app = Failures(app, service.metrics, labels)
    app = with_cors(app, settings)
    return Edge(app, service.metrics, labels, settings)
