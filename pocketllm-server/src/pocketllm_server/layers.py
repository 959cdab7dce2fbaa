"""The order of the layers around the routes, outermost first."""

from __future__ import annotations

from starlette.routing import Router
from starlette.types import ASGIApp

from pocketllm_server.auth import ApiKeys
from pocketllm_server.cors import with_cors
from pocketllm_server.edge import Edge
from pocketllm_server.failures import Failures
from pocketllm_server.limits import HeaderLimit, QueueLimit
from pocketllm_server.route_labels import RouteLabels
from pocketllm_server.service import Service


def with_layers(router: Router, service: Service) -> ASGIApp:
    """The application as a server runs it.

    Edge (id, log, count) > CORS (answers preflights, which carry no key, and marks errors too) > errors in our shape >
    size of the headers > API keys > the queue > routes.
    """
    settings = service.settings
    labels = RouteLabels(router.routes)
    queue = QueueLimit(router, service.model, settings.max_queue)
    service.metrics.watch_queue(queue)
    app: ASGIApp = ApiKeys(queue, settings.api_keys) if settings.api_keys else queue
    app = HeaderLimit(app, settings.max_header_bytes)
    app = Failures(app, service.metrics, labels)
    app = with_cors(app, settings)
    return Edge(app, service.metrics, labels, settings)
