"""What every route shares: the model, the settings, the counters and the requests under way."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pocketllm.errors import BackendUnavailableError, PocketLLMError
from pocketllm_server.active_requests import ActiveRequests
from pocketllm_server.metrics import Metrics
from pocketllm_server.readiness import Readiness
from pocketllm_server.served_model import ServedModel
from pocketllm_server.settings import ServerSettings
from pocketllm_server.wire.errors import HTTPError

T = TypeVar("T")


class Service:
    """One model behind one listener. Used on the event loop alone."""

    def __init__(self, model: ServedModel, settings: ServerSettings) -> None:
        self.model = model
        self.settings = settings
        self.metrics = Metrics()
        self.active = ActiveRequests(model.cancel)
        self.readiness = Readiness(model)
        self.created = int(time.time())
        # One thread: several that want the interpreter's lock would keep the event loop from it several times as long.
        self._body_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pocketllm-body")

    @property
    def draining(self) -> bool:
        return self.readiness.draining

    def begin_drain(self) -> None:
        """From now on new generation requests are refused; those under way go on."""
        self.readiness.draining = True

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
