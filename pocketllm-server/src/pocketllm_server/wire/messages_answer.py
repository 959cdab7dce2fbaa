"""The message object of ``POST /v1/messages``, and Anthropic's error shape."""

from __future__ import annotations

from typing import Any

import msgspec

from pocketllm.types import Usage

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class AnthropicAnswer(msgspec.Struct, kw_only=True):
    """Anthropic's message object."""

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: dict[str, int]


class AnthropicError(msgspec.Struct):
    """Anthropic's error body."""

    error: dict[str, str]
    type: str = "error"


def error_body(status: int, message: str) -> AnthropicError:
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if 400 <= status < 499 else "api_error")
    return AnthropicError({"type": kind, "message": message})


def usage_object(usage: Usage) -> dict[str, int]:
    """Anthropic counts tokens read from the cache apart from the other input tokens."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
