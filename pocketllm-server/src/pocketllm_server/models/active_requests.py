"""The generation requests this server is answering, under every name a client may use for them."""

from __future__ import annotations

from collections.abc import Callable

from pocketllm.errors import DuplicateRequestError
from pocketllm.types import CancelReason

Cancel = Callable[[str, CancelReason], bool]


class ActiveRequest:
    """One HTTP request and its two public names. ``request_id`` is also the id of the call that its prompts make."""

    def __init__(self, request_id: str, response_id: str) -> None:
        self.request_id = request_id
        self.response_id = response_id
        self.is_submitted = False
        """The model has accepted a prompt of it."""
        self.cancel_reason: CancelReason | None = None


class ActiveRequests:
    """Used on the event loop alone. A request is active from acceptance to its end or its first cancellation."""

    def __init__(self, cancel: Cancel) -> None:
        self._cancel = cancel
        self._by_name: dict[str, ActiveRequest] = {}
        self._all: dict[str, ActiveRequest] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, request_id: str, response_id: str) -> ActiveRequest:
        """Take a request in.

        Raises:
            DuplicateRequestError: a request of this name is active.
        """
        if request_id in self._all or request_id in self._by_name:
            raise DuplicateRequestError(
                f'"request_id" = "{request_id}" is already active: wait for it, cancel it, or choose another id.',
                param="request_id",
            )
        entry = ActiveRequest(request_id, response_id)
        self._all[request_id] = entry
        self._by_name[request_id] = self._by_name[response_id] = entry
        return entry

    def remove(self, entry: ActiveRequest) -> None:
        self._all.pop(entry.request_id, None)
        self._forget_names(entry)

    def cancel(self, name: str, reason: CancelReason) -> bool:
        """Cancel by either name; True the first time only."""
        entry = self._by_name.get(name)
        return entry is not None and self._cancel_entry(entry, reason)

    def cancel_all(self, reason: CancelReason) -> int:
        """Cancel everything; returns how many requests that was."""
        return sum(self._cancel_entry(entry, reason) for entry in list(self._all.values()))

    def _cancel_entry(self, entry: ActiveRequest, reason: CancelReason) -> bool:
        if entry.cancel_reason is not None:
            return False
        if entry.is_submitted and not self._cancel(entry.request_id, reason):
            return False  # it has ended, and its answer is on the way out
        entry.cancel_reason = reason
        self._forget_names(entry)
        return True

    def _forget_names(self, entry: ActiveRequest) -> None:
        for name in (entry.request_id, entry.response_id):
            if self._by_name.get(name) is entry:
                del self._by_name[name]
