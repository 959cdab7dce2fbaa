"""What is known of the HTTP request that the running code works for: its id, and what its log line will say."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from starlette.types import Scope

from pocketllm.types import Usage
from pocketllm_server.transport.http_io import header

REQUEST_ID_HEADER = b"x-request-id"

# What tracing systems send; nothing that could break a header, a log line or a label.
_SENT_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class RequestContext:
    """One HTTP request. Written on the event loop; its id may be read from the threads that work for it."""

    __slots__ = ("finish_reason", "request_id", "status", "ttft_s", "usage")

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.status = 0
        """Of the response, once it has begun; 0 before."""
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.ttft_s: float | None = None


_current: ContextVar[RequestContext | None] = ContextVar("pocketllm_request", default=None)


def current_request() -> RequestContext | None:
    """The request that this task, or the thread it has started, works for."""
    return _current.get()


@contextmanager
def request_context(scope: Scope) -> Iterator[RequestContext]:
    """Make a context for what runs inside, under the client's X-Request-Id where that is well formed, else a new id."""
    sent = header(scope, REQUEST_ID_HEADER)
    well_formed = sent is not None and _SENT_ID.fullmatch(sent)
    context = RequestContext(sent.decode("ascii") if sent is not None and well_formed else uuid.uuid4().hex)
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


def route_path(scope: Scope) -> str:
    """The path below ``root_path``, by the router's own rule: a proxy may have stripped the prefix or not."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if root and (path == root or path.startswith(root + "/")):
        return path[len(root) :]
    return path
