"""States and bounds of a host."""

from __future__ import annotations

import enum

import msgspec


class HostState(enum.StrEnum):
    """Where a host is in its life. Nothing enters SLEEPING yet."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    SLEEPING = "sleeping"
    FAILED = "failed"
    CLOSED = "closed"


class HostLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a host, in seconds and counts."""

    load_timeout_s: float = 3600.0
    hang_timeout_s: float = 60.0
    """A child that answers no ping for this long is killed and replaced."""
    cancel_grace_s: float = 60.0
    """A cancelled sequence that the engine has not ended by then is ended by core."""
    heartbeat_s: float = 2.0
    max_restarts: int = 3
    restart_window_s: float = 300.0
    """More than ``max_restarts`` failures within this window leave the host FAILED."""
    restart_delay_s: float = 0.5
    """Doubled with each failure in the window."""
