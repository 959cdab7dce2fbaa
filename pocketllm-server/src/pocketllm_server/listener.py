"""The listening socket: bound before anything is loaded, so that a taken port is said at once."""

from __future__ import annotations

import errno
import socket

from pocketllm.errors import ConfigurationError

_BACKLOG = 1024


class PortInUseError(ConfigurationError):
    """Another program listens on the wanted address."""


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens already: clients that connect during start-up wait instead of being refused.

    Raises:
        PortInUseError: the port is taken.
        ConfigurationError: the host is unknown or may not be bound.
    """
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"host = {host!r} does not resolve: {error}.", param="host") from None
    family, kind, proto, _, address = found[0]
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(
                f"Port {port} on {host} is in use: stop the program that has it, or choose another with --port.",
                param="port",
            ) from None
        raise ConfigurationError(f"Cannot listen on {host} port {port}: {error.strerror}.", param="host") from None
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    """The address for a person on this machine."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
