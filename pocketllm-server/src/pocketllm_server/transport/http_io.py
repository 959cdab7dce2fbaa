"""Reading a body, sending a JSON body, and noticing that the client is gone: plain ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

import msgspec
from starlette.types import Message, Receive, Scope, Send

from pocketllm_server.wire.errors import Headers, HTTPError

ABORT = "pocketllm.abort"
"""Key of a connection scope: a function that drops the connection and what is still unsent. HTTP/1 only, where a
connection carries one request at a time."""
WRITE = "pocketllm.write"
"""Key of a connection scope: ``write(data: bytes) -> bool`` sends a part of a streamed body at once, past all layers;
False where that is not possible, and the part has to be sent as a message."""

T = TypeVar("T")
_encoder = msgspec.json.Encoder()


class ClientGoneError(Exception):
    """The client closed its connection; nobody is left to answer."""


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of that lower-case name."""
    pairs: Iterable[tuple[bytes, bytes]] = scope["headers"]
    return next((value for key, value in pairs if key.lower() == name), None)


async def read_body(scope: Scope, receive: Receive, max_bytes: int, timeout_s: float) -> bytes:
    """The whole request body.

    Raises:
        HTTPError: 413 above ``max_bytes``, 408 after ``timeout_s``.
        ClientGoneError: the client left before the end.
    """
    length = header(scope, b"content-length")
    if length is not None and length.isdigit() and int(length[:20]) > max_bytes:
        raise _too_large(max_bytes)
    chunks: list[bytes] = []
    num_bytes = 0
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGoneError
                chunk = message.get("body", b"")
                num_bytes += len(chunk)
                if num_bytes > max_bytes:
                    raise _too_large(max_bytes)
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        raise HTTPError(408, f"The request body did not arrive within {timeout_s:g} seconds.") from None


def _too_large(max_bytes: int) -> HTTPError:
    return HTTPError(413, f"The request body is larger than {max_bytes} bytes: send less.", code="body_too_large")


def check_json(scope: Scope) -> None:
    """Insist on JSON: browsers send other types across sites without asking.

    Raises:
        HTTPError: 415.
    """
    kind = (header(scope, b"content-type") or b"").split(b";", 1)[0].strip().lower()
    if kind != b"application/json" and not (kind.startswith(b"application/") and kind.endswith(b"+json")):
        shown = kind[:60].decode("latin-1") or "absent"
        raise HTTPError(
            415,
            f"The content type is {shown}: send the header Content-Type: application/json.",
            code="unsupported_media_type",
        )


async def send_json(send: Send, status: int, body: Any, headers: Headers = ()) -> None:
    await send_bytes(send, status, _encoder.encode(body), b"application/json", headers)


async def send_bytes(send: Send, status: int, data: bytes, kind: bytes, headers: Headers = ()) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", kind), (b"content-length", str(len(data)).encode()), *headers],
        }
    )
    await send({"type": "http.response.body", "body": data, "more_body": False})


async def unless_client_leaves(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` and cancel it as soon as the client is gone; the body must have been read.

    The server drops what is sent after a close without an error, so the disconnect message is the only signal.

    Raises:
        ClientGoneError: the client left first.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        for each in (task, watch):
            each.cancel()
        # Wait for the clean-up inside, which leaves the streams and so frees their slots.
        await asyncio.gather(task, watch, return_exceptions=True)
        # A failure's traceback holds this frame, and the task holds the failure: a cycle around all of the answer.
        del task, watch, each


async def _disconnect(receive: Receive) -> None:
    while True:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            return
