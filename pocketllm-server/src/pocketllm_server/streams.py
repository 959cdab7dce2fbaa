"""Sending one HTTP request's answer, whole or as server-sent events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from pocketllm.errors import PocketLLMError
from pocketllm.types import FinishReason, GenerationRequest, GenerationResult, TokenEvent, Usage
from pocketllm_server.event_body import EventBody
from pocketllm_server.generation import Generation, open_generation
from pocketllm_server.http_io import ClientGoneError, send_json, unless_client_leaves
from pocketllm_server.metrics import RequestTimer
from pocketllm_server.served_model import EventStream
from pocketllm_server.service import Service
from pocketllm_server.sse import DONE, HEADERS, ChunkWriter
from pocketllm_server.wire.errors import Headers, describe, error_event, error_object
from pocketllm_server.wire.responses import sum_usage

logger = logging.getLogger(__name__)


class Endpoint:
    """What differs between answers. A subclass is stateless or made for one request."""

    prefix = ""

    def body(self, generation_id: str, created: int, model: str, results: Sequence[GenerationResult], n: int) -> Any:
        """The whole answer, ready to encode."""
        raise NotImplementedError

    def chunks(self, generation_id: str, created: int, model: str, *, with_usage: bool) -> ChunkWriter:
        raise NotImplementedError

    def begin(self, streams: Sequence[EventStream]) -> None:
        """The prompts were accepted; called once, before anything is asked of the answer."""
        return

    def opening(self, writer: ChunkWriter, num_choices: int) -> bytes:
        """What precedes the first event of all choices."""
        return b"".join(writer.opening(index) for index in range(num_choices))

    def encode(self, writer: ChunkWriter, index: int, event: TokenEvent) -> bytes:
        """The chunks of one event of choice ``index``."""
        return writer.chunk(index, event)

    def usage_of(self, usage: Usage) -> Usage:
        """What the client is told was used."""
        return usage


async def answer(
    service: Service,
    endpoint: Endpoint,
    requests: Sequence[GenerationRequest],
    created: int,
    receive: Receive,
    send: Send,
    *,
    headers: Headers = (),
) -> None:
    """Answer with one JSON body. A client that leaves before it cancels the request.

    Raises:
        PocketLLMError: there is no answer; the status is the error's.
        ClientGoneError: there is nobody to answer.
    """
    timer = RequestTimer(service.metrics, streamed=False)
    outcome = _Outcome()

    async def work() -> Any:
        async with open_generation(service, requests, endpoint.prefix) as generation:
            outcome.accepted = True
            endpoint.begin(generation.streams)
            results = await generation.results()
            outcome.ended(results)
            model = service.settings.served_model_name
            return endpoint.body(generation.response_id, created, model, results, generation.num_choices)

    try:
        body = await unless_client_leaves(receive, work())
    except ClientGoneError:
        outcome.word = "disconnected"
        raise
    except PocketLLMError as error:
        outcome.word = error.code
        raise
    finally:
        outcome.record(timer)
    await send_json(send, 200, body, headers)


async def stream(
    service: Service,
    endpoint: Endpoint,
    requests: Sequence[GenerationRequest],
    created: int,
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    with_usage: bool,
    headers: Headers = (),
) -> None:
    """Answer with server-sent events, one chunk per choice for everything that is new, then ``[DONE]``.

    Raises:
        PocketLLMError: a prompt was not accepted; nothing has been sent.
        ClientGoneError: the client left; its requests are cancelled.
    """
    timer = RequestTimer(service.metrics, streamed=True)
    outcome = _Outcome()

    async def work() -> None:
        async with open_generation(service, requests, endpoint.prefix) as generation:
            outcome.accepted = True
            endpoint.begin(generation.streams)
            model = service.settings.served_model_name
            writer = endpoint.chunks(generation.response_id, created, model, with_usage=with_usage)
            await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS, *headers]})
            async with EventBody(scope, send, service.settings) as body:
                await _EventReply(body, generation, endpoint, writer, timer, outcome).run(with_usage=with_usage)

    try:
        await unless_client_leaves(receive, work())
    except ClientGoneError:
        outcome.word = "disconnected"
        raise
    finally:
        outcome.record(timer)


class _Outcome:
    """How a request ended, for the counters."""

    def __init__(self) -> None:
        self.accepted = False
        self.word = FinishReason.ERROR.value
        self.usage: Usage | None = None
        self.ttft_s: float | None = None

    def ended(self, results: Sequence[GenerationResult]) -> None:
        self.word = str(results[0].finish_reason)
        self.usage = sum_usage([result.usage for result in results])
        self.ttft_s = results[0].timings.ttft_seconds

    def record(self, timer: RequestTimer) -> None:
        if self.accepted:
            timer.end(self.word, self.usage, self.ttft_s)


class _EventReply:
    """One streamed response. Each prompt has a task of its own, so all of them advance together."""

    def __init__(
        self,
        body: EventBody,
        generation: Generation,
        endpoint: Endpoint,
        writer: ChunkWriter,
        timer: RequestTimer,
        outcome: _Outcome,
    ) -> None:
        self._body = body
        self._generation = generation
        self._endpoint = endpoint
        self._writer = writer
        self._timer = timer
        self._outcome = outcome
        self._usages: list[Usage] = []
        self._reported: set[str] = set()

    async def run(self, *, with_usage: bool) -> None:
        num_choices = self._generation.num_choices
        streams = self._generation.streams
        opening = self._endpoint.opening(self._writer, len(streams) * num_choices)
        if opening:
            await self._body.send_chunk(opening)
        if len(streams) == 1:
            await self._forward(streams[0], 0)
        else:
            await _all_of([self._forward(each, position * num_choices) for position, each in enumerate(streams)])
        usage = sum_usage(self._usages)
        if len(self._usages) == len(streams):
            self._outcome.usage = usage
        ending = self._writer.usage(self._endpoint.usage_of(usage)) + DONE if with_usage else DONE
        await self._body.send_chunk(ending, more=False)

    async def _forward(self, stream: EventStream, first_index: int) -> None:
        """Send one prompt's events; a failure becomes an error event, and the response goes on to its end."""
        num_seen = 0

        def take(events: Sequence[TokenEvent]) -> Coroutine[Any, Any, None] | None:
            nonlocal num_seen
            data = b""
            for event in events:
                index = first_index + event.choice_index
                num_seen += len(event.token_ids)
                self._timer.tokens(index, len(event.token_ids))
                if event.usage is not None:
                    self._usages.append(event.usage)
                    # Stop tokens are counted by usage and shown by no event.
                    self._timer.tokens(index, event.usage.completion_tokens - num_seen)
                if event.finish_reason is None:
                    data += self._endpoint.encode(self._writer, index, event)
                else:
                    data += self._end(index, event, stream)
            return self._body.send_at_once(data) if data else None

        try:
            await stream.forward(take)
        except PocketLLMError as error:
            await self._report(describe(error)[1])
        except Exception:  # the status is sent: the stream itself must say that it failed, and still end
            logger.exception("A stream failed")
            await self._report(error_object(500, "The server failed on this request; its log says why."))

    def _end(self, index: int, event: TokenEvent, stream: EventStream) -> bytes:
        """The chunks of a choice's last event."""
        self._outcome.word = str(event.finish_reason)
        if event.finish_reason != FinishReason.ERROR:
            return self._endpoint.encode(self._writer, index, event)
        # What was generated before still goes out; the error event then takes the place of a finish reason.
        data = self._endpoint.encode(self._writer, index, msgspec.structs.replace(event, finish_reason=None))
        return data + self._error_once(failure_object(stream, event))

    async def _report(self, error: dict[str, object]) -> None:
        self._outcome.word = FinishReason.ERROR.value
        data = self._error_once(error)
        if data:
            await self._body.send_chunk(data)

    def _error_once(self, error: dict[str, object]) -> bytes:
        """An error event; empty when this response has said the same already, for another of its choices."""
        message = str(error["message"])
        if message in self._reported:
            return b""
        self._reported.add(message)
        return error_event(error)


def failure_object(stream: EventStream, event: TokenEvent) -> dict[str, object]:
    """The error that an event of a failed choice stands for: the record's own, as in an answer that is not streamed."""
    failure = stream.record.failure
    # Another choice of the request may have failed for another reason.
    if failure is not None and failure.message == event.error:
        return describe(failure)[1]
    return error_object(500, event.error or "The engine failed on this request.", code="engine_error")


async def _all_of(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all at once; the first failure cancels the rest and is raised as it is."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
