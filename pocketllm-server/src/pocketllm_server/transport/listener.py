"""The listening socket: bound before anything is loaded, so that a taken port is said at once."""

from __future__ import annotations

import errno
import os
import socket
import stat

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


def bind_unix(path: str) -> socket.socket:
    """A listening unix socket; a socket file that a program left behind is replaced. Its mode follows the umask.

    Raises:
        PortInUseError: another program listens on it.
        ConfigurationError: the path is something else, or may not be bound.
    """
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigurationError(f"Cannot listen on the unix socket {path}: {error}.", param="uds") from None
    listener.setblocking(False)
    return listener


def _remove_stale(path: str) -> None:
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise ConfigurationError(
                f"{path} exists and is not a socket: remove it, or choose another path with --uds.", param="uds"
            )
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)  # nobody listens any more
            return
        except OSError as error:
            raise ConfigurationError(f"Cannot listen on the unix socket {path}: {error}.", param="uds") from None
    raise PortInUseError(
        f"Another program listens on the unix socket {path}: stop it, or choose another path with --uds.", param="uds"
    )


def remove_socket_file(listener: socket.socket) -> None:
    """Take the file of a unix socket away, while its listener is still open; nothing for other listeners."""
    if listener.family != socket.AF_UNIX:
        return
    try:
        os.unlink(listener.getsockname())
    except FileNotFoundError:
        pass  # removed by somebody already


def url_of(listener: socket.socket, *, secure: bool = False) -> str:
    """The address for a person on this machine; that of a unix socket is ``unix:PATH``."""
    if listener.family == socket.AF_UNIX:
        return f"unix:{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    scheme = "https" if secure else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
