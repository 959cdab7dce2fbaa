"""API keys: one of a few secrets, asked of every request but the probes."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from pocketllm_server.transport.http_io import header
from pocketllm_server.transport.request_context import route_path
from pocketllm_server.wire.errors import HTTPError

OPEN_PATHS = frozenset({"/health", "/alive", "/ready"})
"""Asked by load balancers, which carry no key; they say nothing about requests."""

_CHALLENGE = ((b"www-authenticate", b'Bearer realm="pocketllm"'),)


class ApiKeys:
    """ASGI middleware. Takes ``Authorization: Bearer KEY`` and, as Anthropic's clients send it, ``x-api-key: KEY``.

    Only digests are kept and compared, in constant time and with every key, so that the time of a refusal tells
    neither how much of a guess was right nor which key it resembles.
    """

    def __init__(self, app: ASGIApp, keys: Iterable[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and route_path(scope) not in OPEN_PATHS:
            self._check(scope)
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        given = _given_keys(scope)
        if not given:
            raise HTTPError(
                401,
                "This server asks for an API key: send the header Authorization: Bearer KEY.",
                code="missing_api_key",
                headers=_CHALLENGE,
            )
        known = [hmac.compare_digest(_digest(key), digest) for key in given for digest in self._digests]
        if not any(known):
            raise HTTPError(
                401,
                "The API key is not one that this server knows: check it, or ask the server's operator for one.",
                code="invalid_api_key",
                headers=_CHALLENGE,
            )


def _given_keys(scope: Scope) -> list[bytes]:
    keys = []
    scheme, _, value = (header(scope, b"authorization") or b"").partition(b" ")
    if scheme.lower() == b"bearer" and value.strip():
        keys.append(value.strip())
    own = header(scope, b"x-api-key")
    if own:
        keys.append(own.strip())
    return keys


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
