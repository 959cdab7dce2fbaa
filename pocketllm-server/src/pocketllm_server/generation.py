"""From normalised requests to running streams, for one HTTP request: acceptance, names, clean-up."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pocketllm.errors import (
    BackendUnavailableError,
    ConfigurationError,
    DeadlineExceededError,
    PocketLLMError,
    RequestCancelledError,
)
from pocketllm.sampling_params import MAX_CHOICES
from pocketllm.types import CancelReason, FinishReason, GenerationRequest, GenerationResult
from pocketllm_server.active_requests import ActiveRequest
from pocketllm_server.served_model import EventStream
from pocketllm_server.service import Service


class Generation:
    """The accepted streams of one HTTP request, one per prompt; choice ``i`` of prompt ``p`` has index p * n + i."""

    def __init__(self, entry: ActiveRequest, streams: Sequence[EventStream], num_choices: int) -> None:
        self.entry = entry
        self.streams = streams
        self.num_choices = num_choices

    @property
    def response_id(self) -> str:
        return self.entry.response_id

    async def results(self) -> list[GenerationResult]:
        """All answers, in the order of the prompts.

        A deadline hands over what arrived; any other failure is the whole request's.

        Raises:
            PocketLLMError: why there is no answer, or not a whole one.
        """
        outcomes = await asyncio.gather(*(stream.result() for stream in self.streams), return_exceptions=True)
        answers = [outcome for outcome in outcomes if isinstance(outcome, GenerationResult)]
        error = self._error(answers, [outcome for outcome in outcomes if isinstance(outcome, BaseException)])
        if error is None:
            return answers
        try:
            raise error
        finally:
            # The error's traceback holds this frame: a frame that held the error would outlive the request with it.
            del error, outcomes

    def _error(self, answers: Sequence[GenerationResult], failures: Sequence[BaseException]) -> BaseException | None:
        """Why there is no answer, or not a whole one; None when ``answers`` are the answer."""
        for failure in failures:
            if not isinstance(failure, PocketLLMError):
                return failure
        reason = self.entry.cancel_reason
        if reason is CancelReason.SHUTDOWN:
            return BackendUnavailableError("The server shut down before the answer was complete.")
        cancelled = any(c.finish_reason == FinishReason.CANCELLED for answer in answers for c in answer.choices)
        if reason is not None and (cancelled or failures):
            return RequestCancelledError(f"The request {self.entry.request_id} was cancelled.")
        if failures and (not answers or not all(isinstance(each, DeadlineExceededError) for each in failures)):
            return failures[0]
        return None


@asynccontextmanager
async def open_generation(
    service: Service, requests: Sequence[GenerationRequest], prefix: str
) -> AsyncIterator[Generation]:
    """Submit every prompt of one HTTP request, and leave every stream at the end, however it comes.

    The first request's id, the client's or a fresh one, names the whole. Leaving an unfinished stream cancels it.

    Raises:
        PocketLLMError: a prompt was not accepted; those accepted before it are cancelled.
    """
    service.check_accepting()
    num_choices = requests[0].sampling_params.n
    if len(requests) * num_choices > MAX_CHOICES:
        raise ConfigurationError(
            f"{len(requests)} prompts with n = {num_choices} make {len(requests) * num_choices} choices, above the "
            f"{MAX_CHOICES} that one request may have: split it.",
            param="prompt" if len(requests) > 1 else "n",
        )
    entry = service.active.add(requests[0].request_id, f"{prefix}-{uuid.uuid4().hex}")
    streams: list[EventStream] = []
    try:
        for request in requests:
            stream = await service.model.submit(request)
            streams.append(stream)
            entry.submitted.append(request.request_id)
            if entry.cancel_reason is not None:  # cancelled while it was being accepted
                service.model.cancel(request.request_id, entry.cancel_reason)
        yield Generation(entry, streams, num_choices)
    finally:
        service.active.remove(entry)
        for stream in streams:
            await stream.aclose()
