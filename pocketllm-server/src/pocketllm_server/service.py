"""What every route shares: the model, the settings, the counters and the requests under way."""

from __future__ import annotations

import time

from pocketllm.errors import BackendUnavailableError
from pocketllm_server.active_requests import ActiveRequests
from pocketllm_server.metrics import Metrics
from pocketllm_server.readiness import Readiness
from pocketllm_server.served_model import ServedModel
from pocketllm_server.settings import ServerSettings


class Service:
    """One model behind one listener. Used on the event loop alone."""

    def __init__(self, model: ServedModel, settings: ServerSettings) -> None:
        self.model = model
        self.settings = settings
        self.metrics = Metrics()
        self.active = ActiveRequests(model.cancel)
        self.readiness = Readiness(model)
        self.created = int(time.time())

    @property
    def draining(self) -> bool:
        return self.readiness.draining

    def begin_drain(self) -> None:
        """From now on new generation requests are refused; those under way go on."""
        self.readiness.draining = True

    def check_accepting(self) -> None:
        """
        Raises:
            BackendUnavailableError: the server is shutting down.
        """
        if self.draining:
            raise BackendUnavailableError("The server is shutting down and takes no new requests: try another one.")
