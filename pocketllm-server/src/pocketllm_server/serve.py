"""One listener in this process: Hypercorn on a bound socket, and the two stages of a shutdown."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from collections.abc import Callable

from hypercorn.config import Config

from pocketllm.errors import PocketLLMError
from pocketllm.types import CancelReason
from pocketllm_server.app import App
from pocketllm_server.config.settings import ServerSettings
from pocketllm_server.models.model import Model
from pocketllm_server.service import Service
from pocketllm_server.transport.connections import Connections
from pocketllm_server.transport.refused_heads import answer_refused_heads
from pocketllm_server.transport.tls import tls_context

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_POLL_S = 0.02
# After the drain every request has been told to end; this bounds what a client that reads nothing may still hold up.
_CONNECTIONS_CLOSE_S = 2.0
_HANDSHAKE_S = 20.0
# Beyond the headers that are counted one by one: the request line, separators, the beginning of an HTTP chunk.
_HEAD_SLACK_BYTES = 16 * 1024


class Shutdown:
    """The first signal drains: new requests are refused, those under way run on until a deadline and are then
    cancelled. The second one cancels at once. After that the signals have their usual effect again."""

    def __init__(self, service: Service, drain_timeout_s: float, say: Callable[[str], None]) -> None:
        self.finished = asyncio.Event()
        self.forced_by: int | None = None
        self.failure: PocketLLMError | None = None
        self._service = service
        self._drain_timeout_s = drain_timeout_s
        self._say = say
        self._drain: asyncio.Task[None] | None = None

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.signalled, int(number))

    def uninstall(self, loop: asyncio.AbstractEventLoop) -> None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)

    def signalled(self, number: int) -> None:
        if self._drain is None:
            self._drain = asyncio.get_running_loop().create_task(self._run_drain())
        elif self.forced_by is None:
            self.forced_by = number
            self._service.models.cancel_all(CancelReason.SHUTDOWN)
            self.finished.set()
            self.uninstall(asyncio.get_running_loop())

    async def _run_drain(self) -> None:
        service = self._service
        service.draining = True
        num_active = service.models.num_active
        if num_active:
            word = "request" if num_active == 1 else "requests"
            self._say(
                f"Finishing {num_active} {word}, {self._drain_timeout_s:g} s at most; press Ctrl-C again to stop now."
            )
        await self._until_idle(self._drain_timeout_s)
        if service.models.cancel_all(CancelReason.SHUTDOWN):
            await self._until_idle(_CONNECTIONS_CLOSE_S)
        self.finished.set()

    async def _until_idle(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self._service.models.num_active and loop.time() < deadline:  # noqa: ASYNC110  # ends are rare; no event is kept
            await asyncio.sleep(_POLL_S)


async def serve(app: App, listener: socket.socket, say: Callable[[str], None] | None = None) -> int:
    """Serve until a signal has ended it; returns the exit code: 0, or 128 + the signal that cut the drain short.

    ``listener`` is bound (see :mod:`pocketllm_server.transport.listener`) and is closed at the end. ``say`` takes
    lines for a person.

    Raises:
        ConfigurationError: the certificate of the settings cannot be used.
        PocketLLMError: the first load failed. A later failure of the engine keeps the server up, to say why.
    """
    loop = asyncio.get_running_loop()
    say = say or _to_stderr
    settings = app.service.settings
    answer_refused_heads()
    connections = Connections(app, _config(settings), tls_context(settings))
    shutdown = Shutdown(app.service, settings.drain_timeout_s, say)
    shutdown.install(loop)
    try:
        async with app.lifespan():
            await connections.listen(listener)
            loading = [loop.create_task(_load(app.service, model, shutdown, say)) for model in app.service.models]
            try:
                await shutdown.finished.wait()
            finally:
                for each in loading:
                    each.cancel()
                await connections.close(_CONNECTIONS_CLOSE_S)
    finally:
        shutdown.uninstall(loop)
    if shutdown.failure is not None:
        raise shutdown.failure
    return 128 + shutdown.forced_by if shutdown.forced_by is not None else 0


async def _load(service: Service, model: Model, shutdown: Shutdown, say: Callable[[str], None]) -> None:
    started_at = time.monotonic()
    try:
        await model.client.ready()
    except PocketLLMError as error:
        # Nothing to wait for: a wrong path or a file that does not load will be the same in a minute.
        if not service.draining:
            shutdown.failure = error
            shutdown.finished.set()
    else:
        backend = model.client.health().backend
        say(f"The model is loaded after {time.monotonic() - started_at:.1f} s, backend {backend}.")


def _config(settings: ServerSettings) -> Config:
    config = Config()
    config.root_path = settings.root_path
    config.h11_max_incomplete_size = config.h2_max_header_list_size = settings.max_header_bytes + _HEAD_SLACK_BYTES
    config.ssl_handshake_timeout = _HANDSHAKE_S
    config.backlog = 1024
    config.loglevel = "WARNING"
    config.include_server_header = False
    config.graceful_timeout = _CONNECTIONS_CLOSE_S
    # Clients keep idle connections for a while: closing before them makes their next request fail.
    config.keep_alive_timeout = 75
    config.keep_alive_max_requests = 100_000
    return config


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
