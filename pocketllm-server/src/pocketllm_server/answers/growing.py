"""What the answers of responses and messages share: one object that grows, and named events that say how."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from pocketllm.types import FinishReason, GenerationResult, TokenEvent, Usage
from pocketllm_server.answers.reply import Reply, unfinished
from pocketllm_server.answers.sse import named_frames
from pocketllm_server.wire.errors import error_object

Event = dict[str, Any]


class GrowingReply(Reply):
    """Base of the two. There is one prompt and one choice. A whole answer is what a stream of one event grows."""

    fault_code = "internal_error"

    def opening(self) -> bytes:
        return named_frames(self.opened())

    def take(self, index: int, event: TokenEvent) -> bytes:
        if event.finish_reason == FinishReason.CANCELLED:
            cancelled = error_object(499, "The request was cancelled.", code="request_cancelled")
            return named_frames(self.grown(unfinished(event)) + self.failed(cancelled))
        return named_frames(self.grown(event))

    def fail(self, error: Mapping[str, object]) -> bytes:
        return named_frames(self.failed(error))

    def end(self, usage: Usage) -> bytes:
        """Nothing: the last event of the choice has said it."""
        return b""

    def body(self, results: Sequence[GenerationResult]) -> Any:
        (result,) = results
        self.opened()
        self.grown(_as_event(result))
        return self.answer

    @property
    @abstractmethod
    def answer(self) -> Any:
        """The whole answer so far, ready to encode."""

    @abstractmethod
    def opened(self) -> list[Event]:
        """The events that open the answer."""

    @abstractmethod
    def grown(self, event: TokenEvent) -> list[Event]:
        """The events for what the choice gained; with its finish reason, those that end the answer."""

    @abstractmethod
    def failed(self, error: Mapping[str, object]) -> list[Event]:
        """The events that end an answer which cannot go on; none when it has ended. ``error`` has OpenAI's keys."""


def _as_event(result: GenerationResult) -> TokenEvent:
    """A whole answer as the one event of a stream."""
    choice = result.choices[0]
    metadata: dict[str, Any] = {"tool_calls": list(choice.tool_calls)} if choice.tool_calls else {}
    if choice.stop_sequence is not None:
        metadata["stop_sequence"] = choice.stop_sequence
    return TokenEvent(
        request_id=result.request_id,
        text=choice.text,
        reasoning_content=choice.reasoning_content or "",
        logprobs=choice.logprobs or (),
        finish_reason=choice.finish_reason,
        usage=result.usage,
        metadata=metadata,
    )
