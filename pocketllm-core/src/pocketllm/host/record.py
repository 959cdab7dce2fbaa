"""A request from acceptance to its final event: the output log, its choices and its readers."""

from __future__ import annotations

import contextvars
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from pocketllm.errors import (
    DeadlineExceededError,
    EngineError,
    PocketLLMError,
    RequestCancelledError,
    SlowReaderError,
)
from pocketllm.text.logprobs import PackedLogprob
from pocketllm.types import (
    CancelReason,
    ChoiceResult,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    LogprobEntry,
    TimingMetrics,
    TokenEvent,
    Usage,
)

DEFAULT_MAX_UNREAD_DELTAS = 65_536


class Delta(msgspec.Struct, frozen=True):
    """One entry of the output log: what one choice gained in one drain."""

    choice_index: int
    text: str = ""
    reasoning: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[PackedLogprob, ...] = ()
    tool_calls: tuple[dict[str, Any], ...] = ()
    finish_reason: str | None = None
    error: str | None = None
    stop_sequence: str | None = None


def join_deltas(deltas: list[Delta]) -> Delta:
    """Consecutive deltas of one choice as one."""
    if len(deltas) == 1:
        return deltas[0]
    return Delta(
        choice_index=deltas[0].choice_index,
        text="".join(delta.text for delta in deltas),
        reasoning="".join(delta.reasoning for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
        tool_calls=tuple(call for delta in deltas for call in delta.tool_calls),
        finish_reason=deltas[-1].finish_reason,
        error=deltas[-1].error,
        stop_sequence=deltas[-1].stop_sequence,
    )


class RequestRecord:
    """The output log of one request and its subscribers.

    The pump appends; each reader has a position of its own, so a slow reader costs no copies: what it has not seen
    merges into one event per choice. When the last subscriber leaves an unfinished record, ``on_abandoned`` is called.
    Threads: every method may be called from any thread; the lock is the host's.
    """

    def __init__(
        self, request: GenerationRequest, lock: threading.RLock, on_abandoned: Callable[[RequestRecord], None]
    ) -> None:
        self.request = request
        self.call_id = request.call_id
        self.num_prompt_tokens = len(request.prompt_tokens)
        self.num_cached_tokens = 0
        self.num_generated = [0] * len(request.choices)
        self.num_reasoning = [0] * len(request.choices)
        self.context = contextvars.copy_context()
        """The submitter's: work for this request runs in it, so that what is logged there has the submitter's marks."""
        self.prompt_logprobs: tuple[LogprobEntry | None, ...] | None = None
        self.cancel_reason: CancelReason | None = None
        self.failure: PocketLLMError | None = None
        self.accepted_at = time.monotonic()
        self.first_token_at: float | None = None
        self.finished = False
        """The last choice has ended; an attribute beside ``finished_at``: each token asks for it several times."""
        self.finished_at: float | None = None
        self._log: list[Delta] = []
        self._lock = lock
        self._on_abandoned = on_abandoned
        self._subscriptions: list[Subscription] = []
        self._num_unfinished = len(request.choices)

    def take_request(self, request: GenerationRequest) -> None:
        """The request as it was when its call was sealed: an extension may have replaced it."""
        self.request = request
        self.num_prompt_tokens = len(request.prompt_tokens)

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def usage(self) -> Usage:
        """Prompt tokens once, completion tokens over all choices."""
        return Usage(
            prompt_tokens=self.num_prompt_tokens,
            completion_tokens=sum(self.num_generated),
            cached_tokens=self.num_cached_tokens,
            reasoning_tokens=sum(self.num_reasoning),
        )

    @property
    def timings(self) -> TimingMetrics:
        if self.finished_at is None:
            return TimingMetrics()
        total = self.finished_at - self.accepted_at
        if self.first_token_at is None:
            return TimingMetrics(total_seconds=total)
        ttft = self.first_token_at - self.accepted_at
        longest = max(self.num_generated)
        return TimingMetrics(
            ttft_seconds=ttft,
            prefill_seconds=ttft,
            decode_seconds=total - ttft,
            total_seconds=total,
            tpot_seconds=(total - ttft) / (longest - 1) if longest > 1 else None,
        )

    def append(self, delta: Delta) -> None:
        """Add to the log; the caller holds the lock and notifies once per drain."""
        self._log.append(delta)
        if delta.finish_reason is not None:
            self._num_unfinished -= 1
            if self._num_unfinished == 0:
                self.finished_at = time.monotonic()
                self.finished = True

    def notify(self) -> None:
        for subscription in list(self._subscriptions):
            subscription.on_output()

    def subscribe(
        self, wake: Callable[[], None], *, max_unread_deltas: int = DEFAULT_MAX_UNREAD_DELTAS
    ) -> Subscription:
        """Read from the start of the log. ``wake`` is called from the pump's thread when there is more and is quick."""
        with self._lock:
            subscription = Subscription(self, wake, max_unread_deltas)
            self._subscriptions.append(subscription)
        if self.finished:
            wake()
        return subscription

    def _leave(self, subscription: Subscription) -> None:
        with self._lock:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)
                if not self._subscriptions and not self.finished:
                    self._on_abandoned(self)

    def events_from(self, position: int) -> tuple[list[TokenEvent], int]:
        """Everything after ``position``, merged per choice in order of first appearance, and the new position."""
        with self._lock:
            fresh = self._log[position:]
            end = len(self._log)
            finished = self.finished
        if len(fresh) == 1:  # a reader that keeps up, which is nearly every one
            events = [self._event(fresh[0])]
        else:
            by_choice: dict[int, list[Delta]] = {}
            for delta in fresh:
                by_choice.setdefault(delta.choice_index, []).append(delta)
            # A choice that ended goes after those that continue, so the request's last event is a final one.
            order = sorted(by_choice, key=lambda index: by_choice[index][-1].finish_reason is not None)
            events = [self._event(join_deltas(by_choice[index])) for index in order]
        if finished and events:
            events[-1] = msgspec.structs.replace(events[-1], usage=self.usage, timings=self.timings)
        return events, end

    def _event(self, delta: Delta) -> TokenEvent:
        metadata: dict[str, Any] = {}
        if delta.tool_calls:
            metadata["tool_calls"] = list(delta.tool_calls)
        if delta.stop_sequence is not None:
            metadata["stop_sequence"] = delta.stop_sequence
        return TokenEvent(
            request_id=self.request.request_id,
            choice_index=delta.choice_index,
            text=delta.text,
            reasoning_content=delta.reasoning,
            token_ids=delta.token_ids,
            logprobs=tuple([row.render() for row in delta.logprobs]) if delta.logprobs else (),
            finish_reason=delta.finish_reason,
            error=delta.error,
            metadata=metadata,
        )

    def result(self) -> GenerationResult:
        """The finished answer, made from the same log that streams read.

        Raises:
            RequestCancelledError, DeadlineExceededError: cancelled, and no choice had ended before.
            EngineError (or the plugin's error): no choice has an answer because the engine or a plugin failed.
        """
        events, _ = self.events_from(0)
        wants_logprobs = self.request.sampling_params.logprobs
        choices = tuple(self._choice_result(event, wants_logprobs) for event in sorted(events, key=_by_index))
        answered = tuple(c for c in choices if c.finish_reason not in (FinishReason.CANCELLED, FinishReason.ERROR))
        if not answered:
            raise self.error(choices)
        # A deadline hands over the choices that arrived; any other end reports each choice as it is.
        kept = answered if self.cancel_reason is CancelReason.DEADLINE else choices
        return GenerationResult(
            request_id=self.request_id,
            choices=kept,
            usage=self.usage,
            timings=self.timings,
            prompt_logprobs=self.prompt_logprobs,
        )

    def error(self, choices: tuple[ChoiceResult, ...] = ()) -> PocketLLMError:
        """Why this request has no answer."""
        if self.failure is not None:
            return self.failure
        if self.cancel_reason is CancelReason.DEADLINE:
            return DeadlineExceededError(
                f"Request {self.request_id} passed its deadline of {self.request.deadline_s} s before a choice was "
                "complete: raise the deadline or lower max_tokens."
            )
        errors = [choice.error for choice in choices if choice.error]
        if errors:
            return EngineError(f"The engine failed on request {self.request_id}: {errors[0]}")
        reason = self.cancel_reason or CancelReason.CLIENT
        return RequestCancelledError(f"Request {self.request_id} was cancelled ({reason.value}).")

    def _choice_result(self, event: TokenEvent, wants_logprobs: bool) -> ChoiceResult:
        return ChoiceResult(
            index=event.choice_index,
            text=event.text,
            token_ids=event.token_ids,
            finish_reason=event.finish_reason or FinishReason.ERROR,
            reasoning_content=event.reasoning_content or None,
            tool_calls=whole_calls(event.metadata.get("tool_calls", ())),
            logprobs=event.logprobs if wants_logprobs else None,
            stop_sequence=event.metadata.get("stop_sequence"),
            num_generated_tokens=self.num_generated[event.choice_index],
            error=event.error,
        )


class Subscription:
    """One reader of a record. :meth:`take` never blocks; the owner waits for ``wake`` in its own way."""

    def __init__(self, record: RequestRecord, wake: Callable[[], None], max_unread_deltas: int) -> None:
        self.record = record
        self._wake = wake
        self._position = 0
        self._max_unread_deltas = max_unread_deltas
        self._closed = False
        self.cut = False

    def wait_for_end(self) -> None:
        """From here on this reader only waits for the result, so it cannot fall behind."""
        self._max_unread_deltas = sys.maxsize

    def on_output(self) -> None:
        if len(self.record._log) - self._position > self._max_unread_deltas:  # same module: the log is shared
            self.cut = True
            self.close()
        self._wake()

    def take(self) -> list[TokenEvent]:
        """What is new since the last call; [] when there is nothing."""
        if self._position == len(self.record._log):
            return []
        events, self._position = self.record.events_from(self._position)
        return events

    @property
    def at_end(self) -> bool:
        """True when there will be no more: the record is finished and everything was taken, or this reader left.

        Raises:
            SlowReaderError: this reader was cut.
        """
        if self.cut:
            raise SlowReaderError(
                f"Request {self.record.request_id} was cut: its reader fell {self._max_unread_deltas} events behind. "
                "Read faster, or ask for an answer that is not streamed."
            )
        return self._closed or (self.record.finished and self._position >= len(self.record._log))

    def close(self) -> None:
        """Leave; idempotent. The last one to leave an unfinished record cancels it; a reader that waits is woken."""
        if not self._closed:
            self._closed = True
            self.record._leave(self)
            self._wake()
            # The reader holds this and its method is held here: a cycle that would keep the whole output log alive.
            self._wake = _no_reader


def _no_reader() -> None:
    """Takes the place of the reader's wake once its subscription is closed."""


def whole_calls(deltas: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Complete calls from streamed deltas: what shares an ``index`` is one call, what has none stands for itself."""
    calls: list[dict[str, Any]] = []
    by_index: dict[object, dict[str, Any]] = {}
    for delta in deltas:
        index = delta.get("index")
        call = by_index.get(index) if index is not None else None
        if call is None:
            call = {name: value for name, value in delta.items() if name != "index"}
            if isinstance(call.get("function"), dict):
                call["function"] = dict(call["function"])
            calls.append(call)
            if index is not None:
                by_index[index] = call
            continue
        arguments = delta.get("function", {}).get("arguments")
        if arguments:
            function = call.setdefault("function", {})
            function["arguments"] = function.get("arguments", "") + arguments
    return tuple(calls)


def _by_index(event: TokenEvent) -> int:
    return event.choice_index
