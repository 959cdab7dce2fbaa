"""Bounds on what one client, or all of them together, may ask: headers, messages, prompts, the queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pocketllm.errors import ConfigurationError, PocketLLMError, QueueFullError
from pocketllm.types import GenerationRequest
from pocketllm_server.request_context import route_path
from pocketllm_server.served_model import ServedModel
from pocketllm_server.settings import ServerSettings
from pocketllm_server.wire.errors import HTTPError

GENERATING_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"})


class HeaderLimit:
    """ASGI middleware: 431 for a request whose headers are larger than ``max_bytes``."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            num_bytes = sum(len(name) + len(value) for name, value in scope["headers"])
            if num_bytes > self._max_bytes:
                raise HTTPError(
                    431,
                    f"The headers have {num_bytes} bytes, above the {self._max_bytes} that this server takes: send "
                    "fewer, such as smaller cookies.",
                    code="headers_too_large",
                )
        await self._app(scope, receive, send)


class QueueLimit:
    """ASGI middleware: 429 for a generating request that would wait behind more than ``max_queue`` others.

    Asked twice: before the body is read, so that a flood costs little, and when it has been read, from where on the
    request counts, until the last byte of its answer: a client that sends slowly takes nobody's place. Without
    ``max_queue`` the engine's own bound on active requests holds alone.
    """

    def __init__(self, app: ASGIApp, model: ServedModel, max_queue: int | None) -> None:
        self._app = app
        self._model = model
        self._max_queue = max_queue
        self.num_inside = 0
        """Generating requests that wait or run."""

    def limit(self) -> int | None:
        """Most requests inside at once; None while it is unknown or unbounded here."""
        if self._max_queue is None:
            return None
        try:
            return self._model.capabilities.max_batch_size + self._max_queue
        except PocketLLMError:
            return None  # the request is about to be refused for that very reason

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or route_path(scope) not in GENERATING_PATHS:
            await self._app(scope, receive, send)
            return
        self._check()
        is_inside = False

        async def admitting() -> Message:
            nonlocal is_inside
            message = await receive()
            if not is_inside and message["type"] == "http.request" and not message.get("more_body", False):
                self._check()
                self.num_inside += 1
                is_inside = True
            return message

        try:
            await self._app(scope, admitting, send)
        finally:
            self.num_inside -= is_inside

    def _check(self) -> None:
        limit = self.limit()
        if limit is not None and self.num_inside >= limit:
            raise QueueFullError(
                f"{self.num_inside} requests run or wait, which is the limit (max_queue = {self._max_queue}): try "
                "again later."
            )


def check_prompt_limits(settings: ServerSettings, requests: Sequence[GenerationRequest]) -> None:
    """Refuse conversations and prompts that are too large, before they are rendered and tokenized.

    Raises:
        ConfigurationError: ``messages`` or the prompts are above ``max_messages`` or ``max_prompt_chars``.
    """
    num_chars = 0
    for request in requests:
        messages: Sequence[Any] = request.metadata.get("messages") or ()
        if len(messages) > settings.max_messages:
            raise ConfigurationError(
                f'"messages" has {len(messages)} messages, above the {settings.max_messages} that this server takes: '
                "leave out the oldest ones.",
                param="messages",
            )
        # A conversation's prompt is a rendering of its messages, with words of ours.
        num_chars += _num_chars(messages) if messages else len(request.prompt or "") + len(request.prompt_tokens)
    if settings.max_prompt_chars and num_chars > settings.max_prompt_chars:
        has_messages = any(request.metadata.get("messages") for request in requests)
        raise ConfigurationError(
            f"The prompt has {num_chars} characters or token ids, above the {settings.max_prompt_chars} that this "
            "server takes: shorten it.",
            param="messages" if has_messages else "prompt",
        )


def _num_chars(messages: Iterable[Any]) -> int:
    total = 0
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            total += len(content)
        elif isinstance(content, list):
            total += sum(len(part.get("text") or "") for part in content if isinstance(part, dict))
    return total
