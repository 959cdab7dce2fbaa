"""The async API: :class:`AsyncLLM`, the same pipeline driven by the event loop, without a thread per request."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from pocketllm.async_stream import AsyncStream
from pocketllm.engine_args import EngineArgs
from pocketllm.errors import ConfigurationError, QueueFullError
from pocketllm.fields.requests import check_streaming
from pocketllm.host.engine_host import EngineHost
from pocketllm.host.state import HostLimits, HostState
from pocketllm.llm import engine_args
from pocketllm.plugins.registry import Registry
from pocketllm.prompt.constraint import wants_constraint
from pocketllm.prompt_spec import PromptSpec
from pocketllm.protocol import Prompt, chat_call, prompt_requests
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import (
    CancelReason,
    Capabilities,
    EngineStats,
    GenerationRequest,
    GenerationResult,
    HealthStatus,
    TokenEvent,
)

# Rendering and tokenizing this much text takes a few hundred microseconds; more goes to a thread.
MAX_INLINE_CHARS = 2_000
MAX_INLINE_MESSAGES = 20
NUM_PREPARE_THREADS = 2


class AsyncLLM:
    """An open model for one event loop.

    ``async with AsyncLLM(args) as llm`` waits until the model is ready. A server calls :meth:`start` instead, which
    returns at once, and watches :meth:`health`. All methods belong to the loop's thread but :meth:`cancel` and
    :meth:`health`, which any thread may call.

    Args:
        args: what to open; or give the fields of :class:`EngineArgs` as keywords.
        placement: "child", "thread", or "auto": a child process for engines that hold the GIL while they step. An
            explicit ``args.placement`` wins.
    """

    def __init__(
        self,
        args: EngineArgs | str | os.PathLike[str] | None = None,
        *,
        placement: str = "auto",
        registry: Registry | None = None,
        limits: HostLimits | None = None,
        on_progress: Callable[[str, float], None] | None = None,
        **fields: Any,
    ) -> None:
        args = engine_args(args, fields)
        self._host = EngineHost(args, registry=registry, placement=placement, limits=limits, on_progress=on_progress)
        self._executor = ThreadPoolExecutor(max_workers=NUM_PREPARE_THREADS, thread_name_prefix="pocketllm-prepare")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due: float | None = None
        self._changed: asyncio.Event = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin loading in the background; idempotent."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._host.on_change(self._wake_waiters)
            self._loop.add_reader(self._host.fileno(), self._drain)
            # A pool starts a thread when all others are busy. All of them now: how many threads a process has later is
            # then no matter of chance.
            together = threading.Barrier(NUM_PREPARE_THREADS)
            for _ in range(NUM_PREPARE_THREADS):
                self._executor.submit(together.wait)
            self._host.start()
        elif self._loop is not asyncio.get_running_loop():
            raise ConfigurationError("This AsyncLLM belongs to another event loop: make one for each loop.")

    async def ready(self) -> None:
        """Wait until the model is loaded.

        Raises:
            PocketLLMError: the load failed, with its own error; BackendUnavailableError when closed.
        """
        await self.start()
        while self._host.state is HostState.LOADING:
            changed = self._changed
            await changed.wait()
        self._host.check_ready()

    def health(self) -> HealthStatus:
        return self._host.health()

    @property
    def host(self) -> EngineHost:
        """The home of the engine behind this front."""
        return self._host

    @property
    def capabilities(self) -> Capabilities:
        """Raises BackendUnavailableError until the model is ready."""
        return self._host.capabilities

    def stats(self) -> EngineStats:
        return self._host.stats()

    def metrics(self) -> EngineStats:
        return self._host.stats()

    async def drain(self, deadline_s: float) -> bool:
        """Take no new requests, let active ones end for ``deadline_s``, then cancel; True if none was cancelled."""
        self._host.begin_drain()
        idle = await self._idle(deadline_s)
        if not idle:
            self._host.cancel_all()
            await self._idle(self._host.limits.cancel_grace_s)
        return idle

    async def close(self, deadline_s: float = 5.0) -> None:
        """End every request and the engine; idempotent, and safe to call from several tasks."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close(deadline_s))
        await asyncio.shield(self._closing)

    async def _close(self, deadline_s: float) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._host.close, deadline_s)
        if self._loop is not None:
            self._host.drain_events()
            self._loop.remove_reader(self._host.fileno())
            if self._timer is not None:
                self._timer.cancel()
        self._wake_waiters()
        self._executor.shutdown(wait=False)
        self._host.release()

    async def changed(self) -> None:
        """Wait until what :meth:`health` says has changed, or may have; what changes before the loop turns counts."""
        await self._changed.wait()

    async def __aenter__(self) -> Self:
        try:
            await self.ready()
        except BaseException:
            await self.close(0.0)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # -- generation -----------------------------------------------------------------------------------------------

    async def submit(self, request: GenerationRequest) -> AsyncStream:
        """Admit a request; the stream reads its events.

        Raises:
            PocketLLMError: refused; nothing was started.
        """
        await self.start()
        if _is_short(request):
            prepared = self._host.prepare(request)
        else:
            # What is logged on the way says whose it is, as on the loop.
            run = contextvars.copy_context().run
            loop = asyncio.get_running_loop()
            prepared = await loop.run_in_executor(self._executor, run, self._host.prepare, request)
        record = self._host.submit(request, prepared)
        self._plan_timer()
        return AsyncStream(record)

    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
    ) -> list[GenerationResult]:
        """As :meth:`pocketllm.LLM.generate`."""
        await self.ready()
        return await self._results(prompt_requests(prompts, sampling_params, request_id))

    async def generate_stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
    ) -> AsyncIterator[TokenEvent]:
        """As :meth:`pocketllm.LLM.generate_stream`."""
        await self.ready()
        requests = prompt_requests(prompt, sampling_params, request_id)
        if len(requests) != 1:
            raise ConfigurationError("generate_stream takes one prompt: call it once for each.", param="prompt")
        check_streaming(requests[0], self.capabilities)
        async with await self.submit(requests[0]) as stream:
            async for event in stream:
                yield event

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: SamplingParams | None = None,
        **fields: Any,
    ) -> list[GenerationResult]:
        """As :meth:`pocketllm.LLM.chat`."""
        await self.ready()
        return await self._results([chat_call(messages, sampling_params, self.capabilities, **fields)])

    async def chat_stream(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: SamplingParams | None = None,
        **fields: Any,
    ) -> AsyncIterator[TokenEvent]:
        """As :meth:`pocketllm.LLM.chat_stream`."""
        await self.ready()
        request = chat_call(messages, sampling_params, self.capabilities, **fields)
        check_streaming(request, self.capabilities)
        async with await self.submit(request) as stream:
            async for event in stream:
                yield event

    def cancel(self, request_id: str, reason: CancelReason = CancelReason.CLIENT) -> bool:
        """Ask for the end of an active request at the next step boundary; False when it is not active."""
        return self._host.cancel(request_id, reason)

    async def _results(self, requests: list[GenerationRequest]) -> list[GenerationResult]:
        streams: list[AsyncStream] = []
        results: list[GenerationResult] = []
        async with contextlib.AsyncExitStack() as stack:
            for request in requests:
                while (stream := await self._admitted(request)) is None:
                    if len(results) == len(streams):
                        raise QueueFullError("Other requests hold all the room (max_num_requests): try again later.")
                    results.append(await streams[len(results)].result())
                streams.append(await stack.enter_async_context(stream))
            while len(results) < len(streams):
                results.append(await streams[len(results)].result())
        return results

    async def _admitted(self, request: GenerationRequest) -> AsyncStream | None:
        try:
            return await self.submit(request)
        except QueueFullError:
            return None

    # -- the loop's side ------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        self._host.drain_events()
        self._plan_timer()

    def _plan_timer(self) -> None:
        due = self._host.next_timer()
        if due == self._timer_due or self._loop is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = None
        if due is not None:
            self._timer = self._loop.call_later(max(0.0, due - time.monotonic()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer_due = None
        self._drain()

    def _wake_waiters(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _idle(self, timeout_s: float) -> bool:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, self._host.wait_idle, timeout_s)


def _is_short(request: GenerationRequest) -> bool:
    """Whether preparing the request takes so little that a thread would cost more. Cheap for any request."""
    if wants_constraint(request):
        return False
    spec = PromptSpec.of(request.metadata)
    messages = spec.messages
    if messages is None:
        return len(request.prompt or "") + len(request.prompt_tokens) <= MAX_INLINE_CHARS
    if spec.tools or len(messages) > MAX_INLINE_MESSAGES:
        return False
    return all("tool_calls" not in message for message in messages) and (
        sum(len(message["content"]) for message in messages) <= MAX_INLINE_CHARS
    )
