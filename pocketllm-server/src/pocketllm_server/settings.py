"""What an operator may set of the HTTP server; the engine has :class:`pocketllm.engine_args.EngineArgs`."""

from __future__ import annotations

import msgspec

from pocketllm.errors import ConfigurationError

MIB = 1024 * 1024


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one listener. Durations are seconds, sizes bytes.

    Raises:
        ConfigurationError: a value is out of bounds; ``param`` names the field.
    """

    served_model_name: str = "default"
    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes a free port."""
    drain_timeout_s: float = 30.0
    """How long requests may run on after the first SIGTERM before they are cancelled."""
    max_body_bytes: int = 16 * MIB
    body_timeout_s: float = 60.0
    """How long a client may take to send its body."""
    send_timeout_s: float = 120.0
    """How long a client may leave a chunk unread before its stream is cut."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigurationError(f"port = {self.port} is out of range: give 0 to 65535.", param="port")
        for name in ("drain_timeout_s", "max_body_bytes"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name} = {getattr(self, name)} is negative.", param=name)
        for name in ("body_timeout_s", "send_timeout_s"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name} = {getattr(self, name)} is not above 0.", param=name)
