"""How many generating requests one model lets in at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pocketllm.errors import PocketLLMError, QueueFullError
from pocketllm_server.models.client import ModelClient


class Queue:
    """A request has a place from where its body was read until the last byte of its answer.

    Without ``max_waiting`` the engine's own bound on active requests holds alone. Used on the event loop alone.
    """

    def __init__(self, client: ModelClient, max_waiting: int | None) -> None:
        self._client = client
        self._max_waiting = max_waiting
        self.num_inside = 0
        """Generating requests that wait or run."""

    def limit(self) -> int | None:
        """Most requests inside at once; None while it is unknown or unbounded here."""
        if self._max_waiting is None:
            return None
        try:
            return self._client.capabilities.max_batch_size + self._max_waiting
        except PocketLLMError:
            return None  # the request is about to be refused for that very reason

    def has_room(self) -> bool:
        limit = self.limit()
        return limit is None or self.num_inside < limit

    def check_room(self) -> None:
        """
        Raises:
            QueueFullError: one more would be above the limit.
        """
        if not self.has_room():
            raise QueueFullError(
                f"{self.num_inside} requests run or wait, which is the limit (max_queue = {self._max_waiting}): try "
                "again later."
            )

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place for what runs inside.

        Raises:
            QueueFullError: there is none.
        """
        self.check_room()
        self.num_inside += 1
        try:
            yield
        finally:
            self.num_inside -= 1
