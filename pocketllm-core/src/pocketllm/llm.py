"""The offline API: :class:`LLM`, many threads at once over one engine."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from pocketllm.engine_args import EngineArgs
from pocketllm.errors import ConfigurationError, QueueFullError, RequestCancelledError
from pocketllm.fields.requests import check_streaming
from pocketllm.host.engine_host import EngineHost
from pocketllm.host.record import RequestRecord, Subscription
from pocketllm.host.state import HostLimits
from pocketllm.plugins.registry import Registry
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

logger = logging.getLogger("pocketllm.engine")


class LLM:
    """An open model in this process.

    Loading happens in the constructor. All methods may be called from many threads at once. Use it as a context manager
    or call :meth:`close`.

    Args:
        args: what to open: arguments, or a model's name or path; or give the fields of :class:`EngineArgs` as keywords.
        registry: which plugins to use; default: the installed ones.
        limits: bounds of the host.
        on_progress: called with (stage, fraction) while loading, from the loading thread.

    Raises:
        ConfigurationError, UnsupportedFeatureError, BackendUnavailableError, PluginError: why nothing was opened.
    """

    def __init__(
        self,
        args: EngineArgs | str | os.PathLike[str] | None = None,
        *,
        registry: Registry | None = None,
        limits: HostLimits | None = None,
        on_progress: Callable[[str, float], None] | None = None,
        **fields: Any,
    ) -> None:
        args = engine_args(args, fields)
        self._host = EngineHost(args, registry=registry, placement="thread", limits=limits, on_progress=on_progress)
        self._stopping = False
        self._closing = threading.RLock()
        self._pump = threading.Thread(target=self._drain_events, name="pocketllm-pump", daemon=True)
        self._pump.start()
        self._host.start()
        try:
            self._host.wait_ready()
        except BaseException:
            self.close(0.0)
            raise

    # -- generation -----------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
    ) -> list[GenerationResult]:
        """Complete text, a list of texts, token ids, or a list of lists of token ids; one result per prompt, in order.

        All prompts run together, as far as the engine batches. When one fails, the others are cancelled.
        """
        requests = prompt_requests(prompts, sampling_params, request_id)
        return self._results(requests)

    def generate_stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
    ) -> Iterator[TokenEvent]:
        """Stream one prompt. Leaving the iterator early cancels the request."""
        requests = prompt_requests(prompt, sampling_params, request_id)
        if len(requests) != 1:
            raise ConfigurationError("generate_stream takes one prompt: call it once for each.", param="prompt")
        return self._stream(requests[0])

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: SamplingParams | None = None,
        **fields: Any,
    ) -> list[GenerationResult]:
        """Answer a conversation; one result. ``fields`` are those of :func:`pocketllm.protocol.chat_call`: reasoning,
        reasoning_effort, tools, tool_choice, response_format, request_id, and more. Nothing given is mutated."""
        return self._results([chat_call(messages, sampling_params, self.capabilities, **fields)])

    def chat_stream(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: SamplingParams | None = None,
        **fields: Any,
    ) -> Iterator[TokenEvent]:
        """Stream the answer to a conversation; see :meth:`chat`."""
        return self._stream(chat_call(messages, sampling_params, self.capabilities, **fields))

    def submit(self, request: GenerationRequest) -> Iterator[TokenEvent]:
        """Stream a request that was built elsewhere (see :mod:`pocketllm.protocol`)."""
        return self._stream(request)

    def cancel(self, request_id: str, reason: CancelReason = CancelReason.CLIENT) -> bool:
        """Ask for the end of an active request at the next step boundary; False when it is not active."""
        return self._host.cancel(request_id, reason)

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        return self._host.capabilities

    @property
    def host(self) -> EngineHost:
        """The home of the engine behind this front."""
        return self._host

    def health(self) -> HealthStatus:
        return self._host.health()

    def metrics(self) -> EngineStats:
        return self._host.stats()

    def close(self, deadline_s: float = 5.0) -> None:
        """End every request and the engine; idempotent."""
        with self._closing:
            if self._stopping:
                return
            self._host.close(deadline_s)
            self._stopping = True
            self._host.wake()
            if threading.current_thread() is not self._pump:
                self._pump.join()
                self._host.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _drain_events(self) -> None:
        poller = select.poll()
        poller.register(self._host.fileno(), select.POLLIN)
        while not self._stopping:
            due = self._host.next_timer()
            timeout_ms = None if due is None else max(0.0, (due - time.monotonic()) * 1e3)
            poller.poll(timeout_ms)
            try:
                self._host.drain_events()
            except Exception as error:  # a fault of core's own: without this thread every caller would wait without end
                logger.exception("draining events failed")
                self._host.fail(f"Draining events failed: {error!r}.")

    def _results(self, requests: list[GenerationRequest]) -> list[GenerationResult]:
        """Submit as many as are admitted, and the rest as room is made, so that a long list needs no care."""
        readers: list[_Reader] = []
        results: list[GenerationResult] = []
        with contextlib.ExitStack() as stack:
            for request in requests:
                while (record := self._admitted(request)) is None:
                    if len(results) == len(readers):
                        raise QueueFullError("Other requests hold all the room (max_num_requests): try again later.")
                    results.append(readers[len(results)].result())
                readers.append(stack.enter_context(_Reader(record)))
            while len(results) < len(readers):
                results.append(readers[len(results)].result())
        return results

    def _admitted(self, request: GenerationRequest) -> RequestRecord | None:
        try:
            return self._host.submit(request)
        except QueueFullError:
            return None

    def _stream(self, request: GenerationRequest) -> Iterator[TokenEvent]:
        # Submitted here and not in the generator, so that a refusal is raised by the call itself.
        check_streaming(request, self.capabilities)
        return _Reader(self._host.submit(request))


class _Reader(Iterator[TokenEvent]):
    """A blocking reader of one record; closing it early leaves the record."""

    def __init__(self, record: RequestRecord) -> None:
        self.record = record
        self._event = threading.Event()
        self._event.set()  # the log may hold something already
        self._subscription: Subscription = record.subscribe(self._event.set)
        self._ready: list[TokenEvent] = []

    def __next__(self) -> TokenEvent:
        while not self._ready:
            if self._subscription.at_end:
                self.close()
                raise StopIteration
            self._event.wait()
            self._event.clear()
            self._ready = self._subscription.take()
        return self._ready.pop(0)

    def result(self) -> GenerationResult:
        self._subscription.wait_for_end()
        while not self.record.finished:
            if self._subscription.at_end:
                raise RequestCancelledError(f"The reader of request {self.record.request_id} was closed.")
            self._event.wait()
            self._event.clear()
        self.close()
        return self.record.result()

    def close(self) -> None:
        self._subscription.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        subscription = getattr(self, "_subscription", None)
        if subscription is not None and not sys.is_finalizing():  # then everything is closed already
            subscription.close()


def engine_args(args: EngineArgs | str | os.PathLike[str] | None, fields: Mapping[str, Any]) -> EngineArgs:
    """Either a finished :class:`EngineArgs`, or its fields as keywords, of which the model may come first."""
    if args is None:
        return EngineArgs(**fields)
    if isinstance(args, str | os.PathLike) and "model" not in fields:
        return EngineArgs(model=os.fspath(args), **fields)
    if fields:
        raise ConfigurationError(f"Give either args or keywords, not both (got {', '.join(sorted(fields))}).")
    if not isinstance(args, EngineArgs):
        raise ConfigurationError(
            f"args = {args!r} is neither an EngineArgs nor a model's name or path: write LLM(model=...).", param="args"
        )
    return args
