"""The answer to bytes that are not an HTTP/1.1 request: they reach no route, so Hypercorn answers them, without a word.

Its protocol has no place for a body, an id or a log line there. :func:`answer_refused_heads` puts one in its place that
differs in this alone.
"""

from __future__ import annotations

import logging

import hypercorn.protocol
import msgspec
from hypercorn.protocol.events import Body, EndBody, Response
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol

from pocketllm_server.transport.request_context import REQUEST_ID_HEADER, request_context
from pocketllm_server.wire.errors import error_object

logger = logging.getLogger(__name__)

_TOO_LARGE = 431


def answer_refused_heads() -> None:
    """From now on connections of this process use :class:`AnsweringH11`; idempotent.

    Hypercorn makes its protocol objects by this name and takes no other class from anyone.
    """
    hypercorn.protocol.H11Protocol = AnsweringH11  # type: ignore[attr-defined]  # its own name there, though it exports none


class AnsweringH11(H11Protocol):
    """Says what was wrong in OpenAI's shape, under a fresh id: one that was sent cannot be trusted to be whole."""

    async def _send_error_response(self, status_code: int) -> None:
        with request_context({"headers": []}) as context:
            logger.info("What a client sent is not an HTTP request: answered with %d", status_code)
        body = msgspec.json.encode({"error": _error(status_code)})
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode("ascii")),
            (b"connection", b"close"),
            (REQUEST_ID_HEADER, context.request_id.encode("ascii")),
        ]
        await self.stream_send(Response(stream_id=STREAM_ID, headers=headers, status_code=status_code))
        await self.stream_send(Body(stream_id=STREAM_ID, data=body))
        await self.stream_send(EndBody(stream_id=STREAM_ID))


def _error(status: int) -> dict[str, object]:
    if status == _TOO_LARGE:
        return error_object(status, "The request's head is larger than this server takes.", code="headers_too_large")
    message = "This is not an HTTP/1.1 request that this server can read: check what wrote it, or what is in between."
    return error_object(status, message)
