"""What an operator may set of the HTTP server; the engine has :class:`pocketllm.engine_args.EngineArgs`."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from pocketllm.errors import ConfigurationError

MIB = 1024 * 1024
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
TOOL_CALL_STREAMING = ("certain", "eager")
REASONING_FIELDS = ("reasoning_content", "both")

_AT_LEAST_0 = ("drain_timeout_s", "max_body_bytes", "max_queue", "keep_alive_interval_s", "max_prompt_chars")
_ABOVE_0 = ("body_timeout_s", "send_timeout_s", "max_header_bytes", "max_json_values", "max_messages")


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one listener. Durations are seconds, sizes bytes.

    Raises:
        ConfigurationError: a value is out of bounds or contradicts another; ``param`` names the field.
    """

    served_model_name: str = "default"

    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes a free port."""
    uds: str | None = None
    """Path of a unix socket to listen on in place of host and port."""
    root_path: str = ""
    """Prefix under which a proxy shows this server: stripped from paths that carry it, and not required of others."""
    ssl_certfile: str | None = None
    """PEM file with the certificate and its chain; with it, TLS alone is spoken."""
    ssl_keyfile: str | None = None
    ssl_keyfile_password: str | None = None

    api_keys: tuple[str, ...] = ()
    """One of these is asked of every request but the probes; empty: nobody is asked."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may read answers; ``*`` is every page. Empty: no CORS header is ever sent."""
    cors_credentials: bool = False

    max_header_bytes: int = 16 * 1024
    """Names and values of a request's headers together."""
    max_body_bytes: int = 16 * MIB
    max_json_values: int = 256 * 1024
    """Values and keys of a body, token ids included: what decoding it costs, whatever its size."""
    max_messages: int = 2048
    """Messages of one conversation."""
    max_prompt_chars: int = 4 * MIB
    """Characters (or token ids) of one request's prompts and messages together; 0: as many as the body holds."""
    max_queue: int | None = None
    """Requests that may wait beyond those the engine runs at once; None: the engine's ``max_num_requests`` alone."""
    body_timeout_s: float = 60.0
    """How long a client may take to send its body."""
    send_timeout_s: float = 120.0
    """How long a client may leave a part of a stream unread before its stream is cut."""
    keep_alive_interval_s: float = 15.0
    """A stream silent for this long gets a comment, so that no proxy takes it for dead; 0: never."""
    drain_timeout_s: float = 30.0
    """How long requests may run on after the first SIGTERM before they are cancelled."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    access_log: bool = True
    log_prompts: bool = False
    """Log the bodies of requests. What people write is in no log otherwise."""

    strict_fields: bool = False
    """Refuse fields that nobody documents, in place of naming them in a response header."""
    tool_call_streaming: Literal["certain", "eager"] = "certain"
    """When parts of a tool call are streamed: once the whole call is certain, or as they come."""

    reasoning_field: Literal["reasoning_content", "both"] = "reasoning_content"
    """Under which name reasoning is sent; both: as ``reasoning`` too, which some clients read."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigurationError(f"port = {self.port} is out of range: give 0 to 65535.", param="port")
        for name in (*_AT_LEAST_0, *_ABOVE_0):
            value = getattr(self, name)
            if value is None:
                continue
            if not math.isfinite(value) or value < 0:
                raise ConfigurationError(f"{name} = {value} is negative or not a number.", param=name)
            if value == 0 and name in _ABOVE_0:
                raise ConfigurationError(f"{name} = {value} is not above 0.", param=name)
        for name, words in (
            ("log_level", LOG_LEVELS), ("log_format", LOG_FORMATS), ("tool_call_streaming", TOOL_CALL_STREAMING),
            ("reasoning_field", REASONING_FIELDS),
        ):  # fmt: skip
            value = getattr(self, name)
            if value not in words:
                raise ConfigurationError(f"{name} = {value!r} is unknown: use one of {', '.join(words)}.", param=name)
        self._check_addresses()
        self._check_keys()

    def _check_addresses(self) -> None:
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            raise ConfigurationError(
                f"root_path = {self.root_path!r} must begin with / and not end with it, as in /llm.", param="root_path"
            )
        if self.ssl_keyfile and not self.ssl_certfile:
            raise ConfigurationError(
                "ssl_keyfile is set without ssl_certfile: TLS needs the certificate too.", param="ssl_certfile"
            )
        if self.cors_credentials and "*" in self.cors_origins:
            raise ConfigurationError(
                "cors_credentials with the origin * would let every page act for its visitors: name the origins.",
                param="cors_origins",
            )
        for origin in self.cors_origins:
            scheme, separator, rest = origin.partition("://")
            if origin != "*" and (not scheme or not separator or not rest or "/" in rest):
                raise ConfigurationError(
                    f"cors_origins has {origin!r}, which is not an origin: write it like https://chat.example.org.",
                    param="cors_origins",
                )

    def _check_keys(self) -> None:
        for key in self.api_keys:
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                # The key itself is not shown: this message ends up in logs.
                raise ConfigurationError(
                    "An API key is empty or has spaces or characters beyond ASCII, which a header cannot carry: "
                    "choose another.",
                    param="api_keys",
                )
