"""From normalised requests to running streams, for one HTTP request: acceptance, names, results, and leaving."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence

from pocketllm.errors import (
    BackendUnavailableError,
    ConfigurationError,
    DeadlineExceededError,
    PocketLLMError,
    RequestCancelledError,
)
from pocketllm.sampling_params import MAX_CHOICES
from pocketllm.types import CancelReason, FinishReason, GenerationRequest, GenerationResult
from pocketllm_server.models.active_requests import ActiveRequest
from pocketllm_server.models.client import EventStream
from pocketllm_server.models.model import Model


class Generation:
    """The accepted streams of one HTTP request, one for each prompt.

    Choice ``i`` of prompt ``p`` has index ``p * num_choices + i`` in the answer. ``created`` is a Unix time.
    """

    def __init__(
        self, model: Model, entry: ActiveRequest, requests: Sequence[GenerationRequest], *, created: int
    ) -> None:
        self.model = model
        self.entry = entry
        self.requests = requests
        self.created = created
        self.streams: list[EventStream] = []
        self.num_choices = requests[0].sampling_params.n

    @property
    def response_id(self) -> str:
        return self.entry.response_id

    async def submit(self, request: GenerationRequest) -> None:
        """
        Raises:
            PocketLLMError: the prompt was not accepted.
        """
        client = self.model.client
        self.streams.append(await client.submit(request))
        self.entry.is_submitted = True
        if self.entry.cancel_reason is not None:  # cancelled while it was being accepted
            client.cancel(request.request_id, self.entry.cancel_reason)

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

    async def close(self) -> None:
        """Leave every stream and forget the names. Core cancels what has not ended and has no other reader."""
        self.model.active.remove(self.entry)
        for stream in self.streams:
            await stream.aclose()

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


Leaving = Callable[[Generation], Awaitable[None]]
"""What becomes of a generation when its exchange is over: sent, failed, or left by its client.

The policy of an ordinary request is :meth:`Generation.close`. One that keeps the streams open keeps them generating.
"""


async def accept(model: Model, requests: Sequence[GenerationRequest], id_prefix: str, created: int) -> Generation:
    """Submit every prompt of one HTTP request. The first request's id, the client's or a fresh one, names the whole.

    Raises:
        PocketLLMError: a prompt was not accepted; those accepted before it are cancelled.
    """
    num_choices = len(requests) * requests[0].sampling_params.n
    if num_choices > MAX_CHOICES:
        raise ConfigurationError(
            f"{len(requests)} prompts with n = {requests[0].sampling_params.n} make {num_choices} choices, above the "
            f"{MAX_CHOICES} that one request may have: split it.",
            param="prompt" if len(requests) > 1 else "n",
        )
    entry = model.active.add(requests[0].request_id, f"{id_prefix}-{uuid.uuid4().hex}")
    generation = Generation(model, entry, requests, created=created)
    try:
        for request in requests:
            await generation.submit(request)
    except BaseException:
        await generation.close()
        raise
    return generation
