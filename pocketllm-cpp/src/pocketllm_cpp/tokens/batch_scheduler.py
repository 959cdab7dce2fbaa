"""Continuous batching over a :class:`QwenEngine`, with callbacks or polling.

The callbacks are a compatibility surface: they cost Python per token. Core reads the native engine's batches itself.
"""

from __future__ import annotations

import itertools
import math
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from pocketllm.engine.closing import close_at_exit
from pocketllm.engine.outbox import Wake
from pocketllm.errors import BackendUnavailableError, ConfigurationError
from pocketllm.sampling_params import SamplingParams
from pocketllm_cpp import _native
from pocketllm_cpp.sampling import native_sampling
from pocketllm_cpp.tokens.batch_types import (
    EngineCaps,
    QwenBatchSamplingParams,
    QwenSchedulerStats,
    SchedulerGenerationResult,
)
from pocketllm_cpp.tokens.qwen_engine import QwenEngine

OnComplete = Callable[[SchedulerGenerationResult], object]
OnToken = Callable[[int, int], object]


@dataclass
class _Open:
    """One request on its way."""

    num_prompt: int
    started: float
    on_complete: OnComplete | None
    on_token: OnToken | None
    tokens: list[int] = field(default_factory=list)
    cached: int = 0
    first_token: float | None = None
    stopped: bool = False


class QwenBatchScheduler:
    """Runs the requests of many threads together. Holds its engine, and has it for itself until :meth:`stop`.

    Methods may be called from any thread. Callbacks run on one thread of the scheduler's own: they must not block,
    since that holds back every other request's events, though not the engine. What they raise is printed on stderr
    and goes no further.

    Args:
        engine: the model.
        max_batch_size: requests that run together; clamped to the engine's ``options.max_batch_size``.

    Raises:
        ConfigurationError: less than one, or another scheduler has the engine.
    """

    def __init__(self, engine: QwenEngine, max_batch_size: int = 1) -> None:
        if max_batch_size < 1:
            raise ConfigurationError(
                f"max_batch_size = {max_batch_size} is too small: give at least 1.", param="max_batch_size"
            )
        self._engine = engine
        runtime = engine._runtime
        options = engine.options
        self._native: _native.Engine | None = _native.Engine(
            runtime,
            max_batch_size=min(max_batch_size, runtime.num_slots),
            prefill_token_budget=options.prefill_chunk_tokens,
            prefix_cache=options.prefix_cache,
            vocab_size=runtime.vocab_size,
        )
        close_at_exit(self._native)
        self._max_batch_size = self._native.max_batch_size
        self._caps = EngineCaps(max_slots=runtime.num_slots)
        self._ids = itertools.count(1)
        self._changed = threading.Condition()  # guards what follows
        self._open: dict[int, _Open] = {}
        self._results: dict[int, SchedulerGenerationResult] = {}
        self._stopping = False
        self._last_stats = self._read_stats(self._native)
        self._wake = Wake()
        self._thread = threading.Thread(target=self._dispatch, name="pocketllm-cpp-callbacks", daemon=True)
        self._thread.start()

    # -- requests -------------------------------------------------------------------------------------------------

    def submit_request(
        self,
        tokens: Sequence[int],
        sampling: QwenBatchSamplingParams | None = None,
        callback: OnComplete | None = None,
        on_token: OnToken | None = None,
    ) -> int:
        """Queue a request and return its id, above 0.

        Args:
            callback: called once with the result; without one, :meth:`poll_result` has it.
            on_token: called as ``on_token(request_id, token)`` for each generated token, a stop token included.

        Raises:
            ConfigurationError: no tokens, an id outside the vocabulary, or a prompt that leaves no room for a token.
            BackendUnavailableError: the scheduler was stopped.
        """
        params = sampling or QwenBatchSamplingParams()
        prompt = list(tokens)
        available = self._engine.max_context - len(prompt)
        if not prompt or available < 1:
            raise ConfigurationError(
                f"A prompt of {len(prompt)} tokens: give at least 1 and fewer than the context of "
                f"{self._engine.max_context}.",
                param="tokens",
            )
        native_params = _native_sampling(params, available)
        stop_ids = list(params.stop_token_ids) + ([] if params.ignore_eos else list(self._engine.eos_ids))
        with self._changed:
            native = self._running_engine()
            request_id = next(self._ids)
            # Events of the request may come before submit() returns.
            self._open[request_id] = _Open(len(prompt), time.monotonic(), callback, on_token)
            try:
                native.submit(prompt, [(request_id, params.seed % 2**64, 0, 0)], native_params, stop_ids, 0, "")
            except BaseException:
                del self._open[request_id]
                raise
        return request_id

    def poll_result(self, request_id: int, timeout_ms: int = 30000) -> SchedulerGenerationResult | None:
        """Wait for the result of a request without callback, and take it; None when the time is up.

        Raises:
            ConfigurationError: no such request, one with a callback, or its result was taken already.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        with self._changed:
            while request_id not in self._results:
                waiting = self._open.get(request_id)
                if waiting is None or waiting.on_complete is not None:
                    raise ConfigurationError(
                        f"request_id = {request_id}: no such request waits for its result to be taken.",
                        param="request_id",
                    )
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not self._changed.wait(remaining):
                    if request_id in self._results:
                        break
                    return None
            return self._results.pop(request_id)

    def cancel_request(self, request_id: int) -> bool:
        """End a request between two steps; its result says "cancelled". False when it is not active."""
        with self._changed:
            if self._native is None or request_id not in self._open:
                return False
            self._native.cancel(request_id)
            return True

    # -- the scheduler ----------------------------------------------------------------------------------------------

    def engine_caps(self) -> EngineCaps:
        """What the engine does; constant. Any thread."""
        return self._caps

    def max_batch_size(self) -> int:
        """Requests that run together, after clamping."""
        return self._max_batch_size

    def set_prefill_token_budget(self, num_tokens: int) -> None:
        """Prompt tokens one step may compute: fewer keep running requests waiting less; 0 computes whole prompts.

        Raises:
            ConfigurationError: negative.
        """
        if num_tokens < 0:
            raise ConfigurationError(f"num_tokens = {num_tokens} is negative: give 0 or more.", param="num_tokens")
        with self._changed:
            self._running_engine().set_prefill_token_budget(num_tokens)

    @property
    def prefill_token_budget(self) -> int:
        """Prompt tokens one step may compute; 0: whole prompts.

        Raises:
            BackendUnavailableError: the scheduler was stopped.
        """
        with self._changed:
            return self._running_engine().prefill_token_budget

    @property
    def is_running(self) -> bool:
        """False once :meth:`stop` was called or the engine has failed."""
        return not self._stopping

    def get_stats(self) -> QwenSchedulerStats:
        """Counters now; after :meth:`stop`, the last ones."""
        with self._changed:
            if self._native is not None:
                self._last_stats = self._read_stats(self._native)
            return self._last_stats

    def stop(self) -> None:
        """End all requests as "cancelled", deliver their results, and give the engine back. Idempotent; may be called
        from a callback, which then is the last to run."""
        with self._changed:
            first, self._stopping = not self._stopping, True
            native = self._native
        if native is not None and first:
            native.close(math.inf)
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _running_engine(self) -> _native.Engine:
        if self._stopping or self._native is None:
            raise BackendUnavailableError("The scheduler was stopped: make a new one.")
        return self._native

    def _read_stats(self, native: _native.Engine) -> QwenSchedulerStats:
        stats = native.stats()
        return QwenSchedulerStats(
            waiting=stats.num_waiting,
            running=stats.num_running,
            completed=stats.num_completed,
            cancelled=stats.num_cancelled,
            free_slots=stats.num_free_slots,
            total_blocks=stats.num_blocks,
            free_blocks=stats.num_free_blocks,
            reserved_blocks=stats.num_blocks - stats.num_free_blocks,
            cache_pinned=stats.num_cached_blocks,
        )

    # -- the scheduler's thread -------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        native = self._native
        assert native is not None
        while True:
            select.select([native.fileno(), self._wake.fileno()], [], [])
            # Asked before draining: what close() posted is there once stop() has set it and woken this thread.
            stopping = self._wake_was_set()
            for batch in native.drain():
                self._deliver(batch)
            if stopping:
                break
        with self._changed:
            self._last_stats = self._read_stats(native)
            self._native = None
            self._changed.notify_all()
        native.give_back()
        self._engine._take_back()

    def _wake_was_set(self) -> bool:
        return bool(select.select([self._wake.fileno()], [], [], 0)[0])

    def _deliver(self, fields: tuple[Any, ...]) -> None:
        handles, tokens, flags, _, prompts, finished, fatal = fields
        now = time.monotonic()
        for handle, cached, _ in prompts:
            self._open[handle].cached = cached
        for handle, token, flag in zip(handles, tokens, flags, strict=True):
            request = self._open[handle]
            request.tokens.append(token)
            request.stopped = bool(flag)
            if request.first_token is None:
                request.first_token = now
            if request.on_token is not None:
                _call(request.on_token, handle, token)
        for handle, reason, error in finished:
            self._finish(handle, reason, error or "", now)
        if fatal is not None:
            with self._changed:
                self._stopping = True
                self._changed.notify_all()

    def _finish(self, request_id: int, reason: str, error: str, now: float) -> None:
        request = self._open[request_id]
        first = request.first_token
        result = SchedulerGenerationResult(
            request_id=request_id,
            generated_tokens=tuple(request.tokens),
            finish_reason=reason,
            prompt_tokens=request.num_prompt,
            completion_tokens=len(request.tokens),
            cached_tokens=request.cached,
            total_seconds=now - request.started,
            ttft_seconds=-1.0 if first is None else first - request.started,
            prefill_seconds=-1.0 if first is None else first - request.started,
            decode_seconds=-1.0 if first is None else now - first,
            stopped_by_token=request.stopped,
            error=error,
        )
        with self._changed:
            if request.on_complete is None:
                self._results[request_id] = result
            del self._open[request_id]
            self._changed.notify_all()
        if request.on_complete is not None:
            _call(request.on_complete, result)


def _call(function: Callable[..., object], *arguments: object) -> None:
    try:
        function(*arguments)
    except Exception:  # noqa: BLE001 - anybody's function may raise anything; the other requests continue
        traceback.print_exc(file=sys.stderr)


def _native_sampling(params: QwenBatchSamplingParams, available: int) -> _native.SamplingParams:
    checked = SamplingParams(
        max_tokens=params.max_new_tokens,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k or None,
    )
    native = native_sampling(checked)
    native.max_tokens = min(params.max_new_tokens, available)
    return native
