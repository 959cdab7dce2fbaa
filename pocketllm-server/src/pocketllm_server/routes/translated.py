"""The path of endpoints that are chat in other words: read, translate, generate one choice, answer in their words."""

from __future__ import annotations

import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from starlette.types import Receive, Scope, Send

from pocketllm.errors import ConfigurationError, PocketLLMError, UnsupportedFeatureError
from pocketllm.fields import FieldRow, shown
from pocketllm.protocol import chat_request
from pocketllm.types import FinishReason, GenerationRequest, GenerationResult, TokenEvent
from pocketllm_server.event_body import EventBody
from pocketllm_server.generation import Generation, open_generation
from pocketllm_server.http_io import ClientGoneError, check_json, read_body, send_json, unless_client_leaves
from pocketllm_server.limits import check_prompt_limits
from pocketllm_server.metrics import RequestTimer
from pocketllm_server.served_model import EventStream
from pocketllm_server.service import Service
from pocketllm_server.sse import HEADERS
from pocketllm_server.streams import failure_object
from pocketllm_server.wire.decode import decode_object, is_quick, set_fields, unknown_fields
from pocketllm_server.wire.dialect import check_rows, in_words_of
from pocketllm_server.wire.errors import describe, error_object
from pocketllm_server.wire.ignored_fields import ignored_fields_header

logger = logging.getLogger(__name__)


class AnswerLog(Protocol):
    """An answer that grows with the events of one choice, and says in its own stream events how."""

    def opening(self, num_prompt_tokens: int) -> list[dict[str, Any]]: ...

    def take(self, event: TokenEvent) -> list[dict[str, Any]]: ...

    def fail(self, error: Mapping[str, object]) -> list[dict[str, Any]]:
        """The events that end a failed answer; none when it has ended. ``error`` has OpenAI's keys."""

    @property
    def answer(self) -> Any:
        """The whole answer so far, ready to encode."""


class Reading(msgspec.Struct, frozen=True):
    """What a body meant."""

    fields: dict[str, Any]
    request: GenerationRequest
    ignored: list[str]


class TranslatedRoute:
    """Base of the routes; a subclass gives the wire Struct, its rows, and the words in both directions."""

    shape: type[msgspec.Struct]
    rows: Sequence[FieldRow]
    chat_names: Mapping[str, str]
    """Chat's name of a field to this endpoint's, where they differ."""
    prefix = ""

    def __init__(self, service: Service) -> None:
        self._service = service

    def chat_body(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The chat request that ``fields`` stand for."""
        raise NotImplementedError

    def log(self, fields: Mapping[str, Any], request: GenerationRequest, response_id: str, created: int) -> AnswerLog:
        raise NotImplementedError

    def unenforced(self, fields: Mapping[str, Any]) -> list[str]:
        """Values that are accepted without effect, and so named."""
        return []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reading = await self.read(scope, receive)
        if reading.ignored:
            names = ", ".join(shown(name) for name in reading.ignored)
            logger.info("request %s: ignored fields: %s", reading.request.request_id, names)
        created = int(time.time())
        if reading.fields.get("stream"):
            await self._stream(reading, created, scope, receive, send)
        else:
            await self._answer(reading, created, receive, send)

    # -- reading --------------------------------------------------------------------------------------------------

    async def read(self, scope: Scope, receive: Receive) -> Reading:
        settings = self._service.settings
        check_json(scope)
        data = await read_body(scope, receive, settings.max_body_bytes, settings.body_timeout_s)
        if is_quick(data):
            return self._read(data)
        return await self._service.read_large(self._read, data)

    def _read(self, data: bytes) -> Reading:
        service = self._service
        body = decode_object(data, service.settings.max_json_values)
        ignored = unknown_fields(body, self.shape)
        fields = set_fields(body, self.shape)
        ignored += self.unenforced(fields)
        if ignored and service.settings.strict_fields:
            raise ConfigurationError(
                f"{shown(ignored[0])} is not acted on, and this server is strict about fields: remove it.",
                param=ignored[0][:80],
            )
        service.check_accepting()
        capabilities = service.model.capabilities
        check_rows(fields, self.rows)
        chat = self.chat_body(fields)
        if service.settings.tool_call_streaming == "eager":
            chat.setdefault("tool_call_streaming", "eager")
        try:
            request = chat_request(chat, capabilities=capabilities)
            check_prompt_limits(service.settings, [request])
        except (ConfigurationError, UnsupportedFeatureError) as error:
            raise in_words_of(error, self.chat_names) from None
        return Reading(fields, request, ignored)

    # -- answering ------------------------------------------------------------------------------------------------

    async def _answer(self, reading: Reading, created: int, receive: Receive, send: Send) -> None:
        timer = _Timer(self._service, streamed=False)

        async def work() -> Any:
            async with open_generation(self._service, [reading.request], self.prefix) as generation:
                timer.accepted = True
                (result,) = await generation.results()
                timer.ended(result)
                log = self.log(reading.fields, reading.request, generation.response_id, created)
                log.opening(generation.streams[0].num_prompt_tokens)
                log.take(_as_event(result))
                return log.answer

        try:
            body = await unless_client_leaves(receive, work())
        except ClientGoneError:
            timer.word = "disconnected"
            raise
        except PocketLLMError as error:
            timer.word = error.code
            raise in_words_of(error, self.chat_names) from None
        finally:
            timer.record()
        await send_json(send, 200, body, ignored_fields_header(reading.ignored))

    async def _stream(self, reading: Reading, created: int, scope: Scope, receive: Receive, send: Send) -> None:
        timer = _Timer(self._service, streamed=True)

        async def work() -> None:
            async with open_generation(self._service, [reading.request], self.prefix) as generation:
                timer.accepted = True
                log = self.log(reading.fields, reading.request, generation.response_id, created)
                headers = [*HEADERS, *ignored_fields_header(reading.ignored)]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                async with EventBody(scope, send, self._service.settings) as body:
                    await self._send_events(generation, log, timer, body)

        try:
            await unless_client_leaves(receive, work())
        except ClientGoneError:
            timer.word = "disconnected"
            raise
        except PocketLLMError as error:
            raise in_words_of(error, self.chat_names) from None
        finally:
            timer.record()

    async def _send_events(self, generation: Generation, log: AnswerLog, timer: _Timer, body: EventBody) -> None:
        (stream,) = generation.streams
        await body.send_chunk(sse_frames(log.opening(stream.num_prompt_tokens)))

        def take(events: Sequence[TokenEvent]) -> Coroutine[Any, Any, None] | None:
            frames = b""
            for event in events:
                timer.saw(event)
                frames += sse_frames(_said(event, stream, log))
            return body.send_at_once(frames) if frames else None

        try:
            await stream.forward(take)
        except PocketLLMError as error:
            timer.word = FinishReason.ERROR.value
            await body.send_chunk(sse_frames(log.fail(describe(error)[1])))
        except Exception:  # the status is sent: the stream itself must say that it failed, and still end
            logger.exception("A stream failed")
            timer.word = FinishReason.ERROR.value
            failure = error_object(500, "The server failed on this request; its log says why.", code="internal_error")
            await body.send_chunk(sse_frames(log.fail(failure)))
        await body.send_chunk(b"", more=False)


def _said(event: TokenEvent, stream: EventStream, log: AnswerLog) -> list[dict[str, Any]]:
    """An endpoint's events for one of the engine's."""
    if event.finish_reason not in (FinishReason.ERROR, FinishReason.CANCELLED):
        return log.take(event)
    events = log.take(msgspec.structs.replace(event, finish_reason=None))
    if event.finish_reason == FinishReason.ERROR:
        return events + log.fail(failure_object(stream, event))
    return events + log.fail(error_object(499, "The request was cancelled.", code="request_cancelled"))


def sse_frame(event: Mapping[str, Any]) -> bytes:
    """One named server-sent event; the name is the event's type."""
    return b"event: " + str(event["type"]).encode() + b"\ndata: " + _encode(event) + b"\n\n"


_encode = msgspec.json.Encoder().encode


def sse_frames(events: Sequence[Mapping[str, Any]]) -> bytes:
    return b"".join([sse_frame(event) for event in events])


def _as_event(result: GenerationResult) -> TokenEvent:
    """A whole answer as the one event of a stream."""
    choice = result.choices[0]
    metadata: dict[str, Any] = {"tool_calls": list(choice.tool_calls)} if choice.tool_calls else {}
    stop = getattr(choice, "stop_sequence", None)
    if stop is not None:
        metadata["stop_sequence"] = stop
    return TokenEvent(
        request_id=result.request_id,
        text=choice.text,
        reasoning_content=choice.reasoning_content or "",
        logprobs=choice.logprobs or (),
        finish_reason=choice.finish_reason,
        usage=result.usage,
        metadata=metadata,
    )


class _Timer:
    """How a request went, for the counters."""

    def __init__(self, service: Service, *, streamed: bool) -> None:
        self.accepted = False
        self.word = FinishReason.ERROR.value
        self._timer = RequestTimer(service.metrics, streamed=streamed)
        self._result: GenerationResult | None = None
        self._last: TokenEvent | None = None
        self._num_seen = 0

    def saw(self, event: TokenEvent) -> None:
        self._num_seen += len(event.token_ids)
        self._timer.tokens(0, len(event.token_ids))
        if event.usage is not None:
            self._last = event
            # Stop tokens are counted by usage and shown by no event.
            self._timer.tokens(0, event.usage.completion_tokens - self._num_seen)
        if event.finish_reason is not None:
            self.word = str(event.finish_reason)

    def ended(self, result: GenerationResult) -> None:
        self._result = result
        self.word = str(result.finish_reason)

    def record(self) -> None:
        if not self.accepted:
            return
        if self._result is not None:
            self._timer.end(self.word, self._result.usage, self._result.timings.ttft_seconds)
        else:
            self._timer.end(self.word, self._last.usage if self._last is not None else None, None)
