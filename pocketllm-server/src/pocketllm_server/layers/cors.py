"""Which web pages of other origins may use this server from a browser: none, unless they are named."""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from pocketllm_server.config.settings import ServerSettings

# What clients of the OpenAI and Anthropic APIs send, and what they read of an answer.
_METHODS = ("GET", "POST", "DELETE")
_REQUEST_HEADERS = (
    "authorization", "x-api-key", "content-type", "x-request-id", "anthropic-version", "anthropic-beta",
    "anthropic-dangerous-direct-browser-access", "openai-organization", "openai-project", "openai-beta",
    "x-stainless-arch", "x-stainless-lang", "x-stainless-os", "x-stainless-package-version", "x-stainless-retry-count",
    "x-stainless-runtime", "x-stainless-runtime-version", "x-stainless-timeout", "x-stainless-helper-method",
)  # fmt: skip
_EXPOSED_HEADERS = ("x-request-id", "retry-after", "x-pocketllm-ignored-fields")


def with_cors(app: ASGIApp, settings: ServerSettings) -> ASGIApp:
    """``app`` behind Starlette's CORS layer for the origins that the settings name; ``app`` itself when none is."""
    if not settings.cors_origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=settings.cors_origins,
        allow_methods=_METHODS,
        allow_headers=_REQUEST_HEADERS,
        allow_credentials=settings.cors_credentials,
        expose_headers=_EXPOSED_HEADERS,
    )
