"""Sending one request's answer, whole or as server-sent events."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import Receive, Scope, Send

from pocketllm.errors import PocketLLMError
from pocketllm.types import FinishReason, TokenEvent, Usage
from pocketllm_server.answers.event_body import EventBody
from pocketllm_server.answers.generation import Generation, Leaving, accept
from pocketllm_server.answers.outcome import Outcome
from pocketllm_server.answers.reading import Reading
from pocketllm_server.answers.reply import Reply, unfinished
from pocketllm_server.answers.sse import HEADERS
from pocketllm_server.models.client import EventStream
from pocketllm_server.service import Service
from pocketllm_server.transport.http_io import ClientGoneError, send_json, unless_client_leaves
from pocketllm_server.wire.completions_answer import sum_usage
from pocketllm_server.wire.errors import describe, error_object
from pocketllm_server.wire.ignored_fields import ignored_fields_header

logger = logging.getLogger(__name__)


class Answer:
    """An ASGI application for one exchange whose body was read. It is called once.

    Raises (when called):
        PocketLLMError: there is no answer, and nothing was sent.
        ClientGoneError: the client left, and ``leaving`` has decided what becomes of its generation.
    """

    def __init__(
        self, service: Service, reading: Reading, reply: type[Reply], *, leaving: Leaving = Generation.close
    ) -> None:
        self._service = service
        self._reading = reading
        self._reply = reply
        self._leaving = leaving
        self._streamed = bool(reading.fields.get("stream"))
        self._outcome = Outcome(reading.model.metrics, streamed=self._streamed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = ignored_fields_header(self._reading.ignored)
        try:
            if self._streamed:
                await unless_client_leaves(receive, self._stream(scope, send, [*HEADERS, *headers]))
                return
            body = await unless_client_leaves(receive, self._whole())
        except ClientGoneError:
            self._outcome.word = "disconnected"
            raise
        except PocketLLMError as error:
            self._outcome.word = error.code
            raise
        finally:
            self._outcome.record()
        await send_json(send, 200, body, headers)

    @asynccontextmanager
    async def _accepted(self) -> AsyncIterator[tuple[Generation, Reply]]:
        self._service.check_accepting()  # again: reading the body took its time
        reading = self._reading
        generation = await accept(reading.model, reading.requests, self._reply.id_prefix, int(time.time()))
        self._outcome.accepted = True
        try:
            yield generation, self._reply(generation, reading.fields, self._service.settings)
        finally:
            await self._leaving(generation)

    async def _whole(self) -> Any:
        async with self._accepted() as (generation, reply):
            results = await generation.results()
            self._outcome.finished(results)
            return reply.body(results)

    async def _stream(self, scope: Scope, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        async with self._accepted() as (generation, reply):
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async with EventBody(scope, send, self._service.settings) as body:
                await _Streaming(body, generation, reply, self._outcome).run()


class _Streaming:
    """The body of one streamed answer. Each prompt has a task of its own, so all of them advance together."""

    def __init__(self, body: EventBody, generation: Generation, reply: Reply, outcome: Outcome) -> None:
        self._body = body
        self._generation = generation
        self._reply = reply
        self._outcome = outcome
        self._usages: list[Usage] = []

    async def run(self) -> None:
        streams, num_choices = self._generation.streams, self._generation.num_choices
        opening = self._reply.opening()
        if opening:
            await self._body.send(opening)
        if len(streams) == 1:
            await self._forward(streams[0], 0)
        else:
            await _all_of([self._forward(each, position * num_choices) for position, each in enumerate(streams)])
        usage = sum_usage(self._usages)
        if len(self._usages) == len(streams):
            self._outcome.usage = usage
        await self._body.send(self._reply.end(usage), more=False)

    async def _forward(self, stream: EventStream, first_index: int) -> None:
        """Send one prompt's events. Its failure is said in the stream, and the answer runs on to its end."""
        num_seen = 0
        timer = self._outcome.timer

        def take(events: Sequence[TokenEvent]) -> Coroutine[Any, Any, None] | None:
            nonlocal num_seen
            data = b""
            for event in events:
                index = first_index + event.choice_index
                num_tokens = len(event.token_ids)
                num_seen += num_tokens
                timer.tokens(index, num_tokens)
                if event.usage is not None:
                    self._usages.append(event.usage)
                    # Stop tokens are counted by usage and shown by no event.
                    timer.tokens(index, event.usage.completion_tokens - num_seen)
                if event.finish_reason is None:
                    data += self._reply.take(index, event)
                else:
                    data += self._last(index, event, stream)
            return self._body.send_at_once(data) if data else None

        try:
            await stream.forward(take)
        except PocketLLMError as error:
            await self._fail(describe(error)[1])
        except Exception:  # the status is sent: the stream itself must say that it failed, and still end
            logger.exception("A stream failed")
            message = "The server failed on this request; its log says why."
            await self._fail(error_object(500, message, code=self._reply.fault_code))

    def _last(self, index: int, event: TokenEvent, stream: EventStream) -> bytes:
        """The frames of a choice's last event."""
        self._outcome.word = str(event.finish_reason)
        if event.finish_reason != FinishReason.ERROR:
            return self._reply.take(index, event)
        # What was generated before still goes out; the error then takes the place of a finish reason.
        return self._reply.take(index, unfinished(event)) + self._reply.fail(_failure(stream, event))

    async def _fail(self, error: dict[str, object]) -> None:
        self._outcome.word = FinishReason.ERROR.value
        data = self._reply.fail(error)
        if data:
            await self._body.send(data)


def _failure(stream: EventStream, event: TokenEvent) -> dict[str, object]:
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
