"""The models behind one listener, found by the name that a request gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pocketllm.types import CancelReason
from pocketllm_server.models.model import Model
from pocketllm_server.wire.errors import HTTPError


class Models:
    """One model or several. Used on the event loop alone."""

    def __init__(self, models: Sequence[Model]) -> None:
        if not models:
            raise ValueError("a server needs a model")
        self._by_name = {model.name: model for model in models}
        if len(self._by_name) != len(models):
            raise ValueError("two models have one name")
        self.default = models[0]
        """The model of requests that name none, and of the probes."""

    def __iter__(self) -> Iterator[Model]:
        return iter(self._by_name.values())

    def of(self, name: str | None) -> Model:
        """The model that a request's ``model`` field means.

        A server of one model takes every name for its own: clients insist on sending one, and know only those of the
        services that they were written for.

        Raises:
            HTTPError: 404, there are several models and none of this name.
        """
        if name is None or len(self._by_name) == 1:
            return self.default
        model = self._by_name.get(name)
        if model is None:
            raise HTTPError(
                404,
                f'The model "{name[:80]}" is not served here: GET /v1/models lists those that are.',
                code="model_not_found",
            )
        return model

    def check_room(self) -> None:
        """Before a body is read, and its model is known: whether any model has a place, so that a flood costs little.

        Raises:
            QueueFullError: every queue is full.
        """
        if not any(model.queue.has_room() for model in self):
            self.default.queue.check_room()

    @property
    def num_active(self) -> int:
        """Requests of all models that were accepted and have not ended."""
        return sum(len(model.active) for model in self)

    def cancel(self, name: str, reason: CancelReason) -> bool:
        """Cancel a request by its own id or its response's; True the first time only."""
        return any(model.active.cancel(name, reason) for model in self)

    def cancel_all(self, reason: CancelReason) -> int:
        """Cancel everything; returns how many requests that was."""
        return sum(model.active.cancel_all(reason) for model in self)
