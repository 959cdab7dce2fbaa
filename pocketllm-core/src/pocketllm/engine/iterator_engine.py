"""A whole engine for authors who only have an iterator of tokens.

A subclass says what it can do (:attr:`IteratorEngine.capabilities`) and yields the tokens of one sequence
(:meth:`IteratorEngine.tokens`). The base class does the rest of the contract: one engine thread that advances all
active sequences in turn, the queue, cancellation between steps, limits, stop ids, events, counters and close.
"""

from __future__ import annotations

import operator
import select
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pocketllm.engine.call import GenerateCall
from pocketllm.engine.outbox import Outbox
from pocketllm.errors import BackendUnavailableError
from pocketllm.hook_markers import hookimpl
from pocketllm.types import (
    Capabilities,
    EngineStats,
    Finish,
    FinishReason,
    GenerationRequest,
    PromptReport,
    RowExtra,
    StepBatch,
    TokenFlag,
    TokenLogprob,
)


class Emission(msgspec.Struct, frozen=True, kw_only=True):
    """What an iterator may yield instead of a bare token id.

    ``token_id`` None makes a row without a token: it counts nothing and only carries text, reasoning or tool calls that
    the backend brings itself. ``logprob`` (natural log, at most 0) and ``top`` ((token id, log probability) pairs, best
    first) go with a token. ``finish_reason`` ends the sequence after this row.
    """

    token_id: int | None = None
    text: str = ""
    reasoning_content: str = ""
    tool_calls: list[dict[str, Any]] = []
    logprob: float | None = None
    top: list[tuple[int, float]] = []
    finish_reason: str | None = None


NAP_S = 2e-5
"""The shortest sleep there is, about 70 µs: what another thread needs to take the interpreter lock."""

Item = int | Emission | PromptReport
"""A token id, an :class:`Emission`, or (once, first) a :class:`PromptReport`, whose handle the base class fills in."""


@dataclass(slots=True, eq=False)
class _Sequence:
    """One choice of one request. Fields after ``request`` belong to the engine thread."""

    handle: int
    request: GenerationRequest
    stop_ids: frozenset[int]
    max_tokens: int | None
    items: Iterator[Item] | None = None
    num_tokens: int = 0


@dataclass(slots=True)
class _Step:
    """The columns of the batch that is being made."""

    handles: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    extras: list[RowExtra] = field(default_factory=list)
    prompts: list[PromptReport] = field(default_factory=list)
    finished: list[Finish] = field(default_factory=list)

    def add(self, handle: int, token: int, flag: int) -> int:
        self.handles.append(handle)
        self.tokens.append(token)
        self.flags.append(flag)
        return len(self.handles) - 1

    def batch(self) -> StepBatch | None:
        if not (self.handles or self.prompts or self.finished):
            return None
        return StepBatch(
            handles=self.handles,
            tokens=self.tokens,
            flags=self.flags,
            logprobs=self.logprobs,
            extras=self.extras,
            prompts=self.prompts,
            finished=self.finished,
        )


class IteratorEngine(ABC):
    """Base class of engines written as iterators.

    Threads: hooks may be called from any thread and hold the lock only to touch the queue. Iterators are created,
    advanced and closed on the engine thread alone, which starts with the first request and sleeps while idle.
    """

    def __init__(self) -> None:
        self._events = Outbox()
        self._condition = threading.Condition()  # guards everything below
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._handles: set[int] = set()
        self._cancelled: set[int] = set()
        self._thread: threading.Thread | None = None
        self._closing = False  # no request is taken any more
        self._closed = False
        self._abandoned = False
        self._num_steps = 0
        self._num_prompt_tokens = 0
        self._num_generated_tokens = 0

    # ------------------------------------------------------------------------------------------ for the author

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this engine does, constant and cheap to read; ``max_batch_size`` sequences advance together."""

    @abstractmethod
    def tokens(self, request: GenerationRequest) -> Iterator[Item]:
        """The tokens of one sequence; ``request.choices`` has exactly one entry, whose ``seed`` is the one to use.

        Called on the engine thread when the sequence is admitted. One item is taken per step, so the work for one token
        belongs between two yields. The base class ends the sequence at a stop id, at ``max_tokens``, on cancel, or when
        the iterator is exhausted ("stop"); a raise ends this sequence alone ("error"). The iterator is always closed.
        """

    def before_step(self, num_active: int) -> None:
        """Called on the engine thread before ``num_active`` sequences advance by one item. Does nothing by default."""
        return

    def release(self) -> None:
        """Called once, from :meth:`pocketllm_close`, after the engine thread has ended. Does nothing by default."""
        return

    # ----------------------------------------------------------------------------------------------- the hooks

    @property
    def events(self) -> Outbox:
        return self._events

    @hookimpl
    def pocketllm_capabilities(self) -> Capabilities:
        return self.capabilities

    @hookimpl
    def pocketllm_generate(self, call: GenerateCall) -> bool:
        request = call.request
        stop_ids = frozenset(request.stop_token_ids)
        max_tokens = request.sampling_params.max_tokens
        with self._condition:
            if self._closing:
                raise BackendUnavailableError("The engine is closed: open a new one.")
            for choice in request.choices:
                single = msgspec.structs.replace(request, choices=(choice,))
                self._waiting.append(_Sequence(choice.handle, single, stop_ids, max_tokens))
                self._handles.add(choice.handle)
            if self._thread is None:
                name = f"pocketllm-{self.capabilities.name}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            self._condition.notify()
        return True

    @hookimpl
    def pocketllm_cancel(self, handle: int, reason: str) -> None:
        with self._condition:
            if handle in self._handles:
                self._cancelled.add(handle)
                self._condition.notify()

    @hookimpl
    def pocketllm_stats(self) -> EngineStats:
        with self._condition:
            num_slots, num_running = self.capabilities.max_batch_size, len(self._running)
            return EngineStats(
                num_running=num_running,
                num_waiting=len(self._waiting),
                num_steps=self._num_steps,
                num_slots=num_slots,
                num_free_slots=num_slots - num_running,
                num_prompt_tokens=self._num_prompt_tokens,
                num_generated_tokens=self._num_generated_tokens,
            )

    @hookimpl
    def pocketllm_close(self, deadline_s: float) -> None:
        with self._condition:
            if self._closed:
                return
            self._closing = self._closed = True
            thread = self._thread
            self._condition.notify()
        if thread is not None:
            thread.join(max(0.0, deadline_s))
        with self._condition:
            # An iterator that does not come back keeps its thread; its sequences still end, and it can post no more.
            self._abandoned = True
            if self._handles:
                ends = [Finish(handle=handle, reason=FinishReason.CANCELLED) for handle in sorted(self._handles)]
                self._handles.clear()
                self._events.post(StepBatch(finished=ends))
        self.release()

    # ----------------------------------------------------------------------------------------- the engine thread

    def _run(self) -> None:
        unread = select.poll()
        unread.register(self._events.fileno(), select.POLLIN)
        while self._wait_for_work():
            if unread.poll(0):
                # An iterator in pure Python keeps the interpreter lock, so the reader of the events has fallen behind;
                # beside one that releases it the reader keeps up, and this costs one system call.
                time.sleep(NAP_S)
            active = self._admit()
            if not active:
                continue
            step, ended = _Step(), []
            try:
                self.before_step(len(active))
                for sequence in active:
                    if self._advance(sequence, step):
                        ended.append(sequence)
            except Exception as exc:  # noqa: BLE001  # before_step is the author's code: the engine is broken for all
                self._fail_all(f"{type(exc).__name__}: {exc}")
                return
            self._retire(step, ended)
        self._end_all(FinishReason.CANCELLED, None)

    def _wait_for_work(self) -> bool:
        """Sleep until there is something to do; False when the engine is to close."""
        with self._condition:
            while not (self._closing or self._waiting or self._running or self._cancelled):
                self._condition.wait()
            return not self._closing

    def _admit(self) -> list[_Sequence]:
        """Between two steps: end what was cancelled, then fill the free places from the queue in order."""
        with self._condition:
            cancelled = self._cancelled & self._handles
            dropped: list[_Sequence] = []
            self._cancelled.clear()
            if cancelled:
                dropped = [sequence for sequence in (*self._running, *self._waiting) if sequence.handle in cancelled]
                self._running = [sequence for sequence in self._running if sequence.handle not in cancelled]
                self._waiting = deque(sequence for sequence in self._waiting if sequence.handle not in cancelled)
            free = self.capabilities.max_batch_size - len(self._running)
            while free > 0 and self._waiting:
                sequence = self._waiting.popleft()
                self._running.append(sequence)
                self._num_prompt_tokens += len(sequence.request.prompt_tokens)
                free -= 1
            active = list(self._running)
        if dropped:
            step = _Step()
            for sequence in dropped:
                self._close_items(sequence)
                step.finished.append(Finish(handle=sequence.handle, reason=FinishReason.CANCELLED))
            self._post(step)
        return active

    def _advance(self, sequence: _Sequence, step: _Step) -> bool:
        """Take one item of one sequence; True when that ended it."""
        try:
            if sequence.items is None:
                sequence.items = iter(self.tokens(sequence.request))
            item = next(sequence.items, None)
            reason = FinishReason.STOP.value if item is None else self._add_row(sequence, item, step)
        except BaseException as exc:  # noqa: BLE001  # the author's iterator may raise or yield anything; its stream ends
            step.finished.append(_error(sequence.handle, exc))
            return True
        if reason is None:
            return False
        step.finished.append(Finish(handle=sequence.handle, reason=reason))
        return True

    def _add_row(self, sequence: _Sequence, item: Item, step: _Step) -> str | None:
        """Append one item to the batch; the finish reason when it ends the sequence."""
        if isinstance(item, PromptReport):
            step.prompts.append(msgspec.structs.replace(item, handle=sequence.handle))
            return None
        # index() also takes the integers of array libraries, and names the type of anything else.
        emission = item if isinstance(item, Emission) else Emission(token_id=operator.index(item))
        token, reason = emission.token_id, emission.finish_reason
        if token is None:
            row = step.add(sequence.handle, 0, TokenFlag.TEXT)
        elif token in sequence.stop_ids:
            step.add(sequence.handle, token, TokenFlag.STOP)
            self._num_generated_tokens += 1
            return FinishReason.STOP.value
        else:
            row = step.add(sequence.handle, token, TokenFlag.NONE)
            sequence.num_tokens += 1
            self._num_generated_tokens += 1
            if emission.logprob is not None:
                step.logprobs.append(TokenLogprob(row=row, logprob=emission.logprob, top=emission.top))
            if reason is None and sequence.num_tokens == sequence.max_tokens:
                reason = FinishReason.LENGTH.value
        if emission.text or emission.reasoning_content or emission.tool_calls:
            extra = RowExtra(
                row=row,
                text=emission.text,
                reasoning_content=emission.reasoning_content,
                tool_calls=emission.tool_calls,
            )
            step.extras.append(extra)
        return reason

    def _retire(self, step: _Step, ended: list[_Sequence]) -> None:
        for sequence in ended:
            self._close_items(sequence)
        with self._condition:
            self._num_steps += 1
            if ended:
                gone = {sequence.handle for sequence in ended}
                self._running = [sequence for sequence in self._running if sequence.handle not in gone]
        # Places are free before the final event is seen, so a caller that reacts to it finds them free.
        self._post(step)

    def _post(self, step: _Step) -> None:
        batch = step.batch()
        if batch is None:
            return
        with self._condition:
            if not self._abandoned:
                self._handles.difference_update(finish.handle for finish in batch.finished)
                self._events.post(batch)

    def _fail_all(self, message: str) -> None:
        """The engine cannot continue: end every sequence with an error and say that nothing more will come."""
        with self._condition:
            self._closing = True
        self._end_all(FinishReason.ERROR, message)
        self._events.post(StepBatch(fatal=message))

    def _end_all(self, reason: FinishReason, error: str | None) -> None:
        with self._condition:
            sequences = [*self._running, *self._waiting]
            self._running, self._waiting = [], deque()
        step = _Step()
        for sequence in sequences:
            self._close_items(sequence)
            step.finished.append(Finish(handle=sequence.handle, reason=reason, error=error))
        self._post(step)

    def _close_items(self, sequence: _Sequence) -> None:
        close = getattr(sequence.items, "close", None)
        sequence.items = None
        if close is not None:
            try:
                close()
            except Exception as exc:  # noqa: BLE001  # the sequence has ended; a failing clean-up must not end the others
                threading.excepthook(
                    threading.ExceptHookArgs((type(exc), exc, exc.__traceback__, threading.current_thread()))
                )


def _error(handle: int, exc: BaseException) -> Finish:
    return Finish(handle=handle, reason=FinishReason.ERROR, error=f"{type(exc).__name__}: {exc}")
