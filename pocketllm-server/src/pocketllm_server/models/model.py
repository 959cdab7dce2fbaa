"""One model behind the listener, and all that the server keeps of it."""

from __future__ import annotations

import time

from pocketllm_server.metrics.generation import ModelMetrics
from pocketllm_server.metrics.page import ModelSample
from pocketllm_server.models.active_requests import ActiveRequests
from pocketllm_server.models.client import ModelClient
from pocketllm_server.models.queue import Queue
from pocketllm_server.models.readiness import Readiness


class Model:
    """Used on the event loop alone.

    Args:
        client: the open model.
        name: what answers and ``/v1/models`` call it.
        max_queue: requests that may wait; None: as many as the engine admits.
        metrics_label: a label pair that tells its metrics from those of other models, as in ``model="tiny"``.
    """

    def __init__(
        self, client: ModelClient, name: str, *, max_queue: int | None = None, metrics_label: str = ""
    ) -> None:
        self.client = client
        self.name = name
        self.created = int(time.time())
        """Unix time at which the server came to know it."""
        self.readiness = Readiness(client)
        self.queue = Queue(client, max_queue)
        self.active = ActiveRequests(client.cancel)
        self.metrics = ModelMetrics()
        self._metrics_label = metrics_label

    def sample(self) -> ModelSample:
        """Its metrics, as they are now."""
        return ModelSample(
            metrics=self.metrics,
            stats=self.client.stats(),
            num_active=len(self.active),
            num_queued=self.queue.num_inside,
            queue_limit=self.queue.limit(),
            label=self._metrics_label,
        )
