"""What every route shares: the models, the settings, the counters of responses, and whether the server takes more."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pocketllm.errors import BackendUnavailableError, PocketLLMError
from pocketllm_server.config.settings import ServerSettings
from pocketllm_server.metrics.http import HTTPMetrics
from pocketllm_server.models.models import Models
from pocketllm_server.wire.errors import HTTPError

T = TypeVar("T")


class Service:
    """The models behind one listener. Used on the event loop alone."""

    def __init__(self, models: Models, settings: ServerSettings) -> None:
        self.models = models
        self.settings = settings
        self.metrics = HTTPMetrics()
        self.draining = False
        """Whether new generation requests are refused, while those under way run on."""
        # One thread: several that want the interpreter's lock would keep the event loop from it several times as long.
        self._body_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pocketllm-body")

    async def read_large(self, read: Callable[[bytes], T], data: bytes) -> T:
        """What ``read`` makes of a body that is too large to be read on the event loop."""
        run = contextvars.copy_context().run
        return await asyncio.get_running_loop().run_in_executor(self._body_thread, run, _read, read, data)

    def check_accepting(self) -> None:
        """
        Raises:
            BackendUnavailableError: the server is shutting down.
        """
        if self.draining:
            raise BackendUnavailableError("The server is shutting down and takes no new requests: try another one.")


def _read(read: Callable[[bytes], T], data: bytes) -> T:
    try:
        return read(data)
    except (PocketLLMError, HTTPError) as error:
        # A refusal says all in its message. Its frames hold what was decoded, which the event loop would have to free.
        error.__traceback__ = error.__context__ = None
        raise
