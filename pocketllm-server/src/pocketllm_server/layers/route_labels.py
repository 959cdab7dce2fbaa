"""The name of a request's route, from a small closed set: a label of counters and a field of the access log."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import BaseRoute, Route
from starlette.types import Scope

from pocketllm_server.transport.request_context import route_path

OTHER = "other"


class RouteLabels:
    """Labels of a router's routes: their paths as declared. Everything else is ``other``, so that labels stay few."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        known = [route for route in routes if isinstance(route, Route)]
        self._exact = {route.path for route in known if "{" not in route.path}
        self._patterns = [(route.path_regex, route.path.replace(":path}", "}")) for route in known if "{" in route.path]

    def of(self, scope: Scope) -> str:
        path = route_path(scope)
        if path in self._exact:
            return path
        return next((label for pattern, label in self._patterns if pattern.match(path)), OTHER)
