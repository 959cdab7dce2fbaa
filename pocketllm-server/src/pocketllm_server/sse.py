"""Server-sent events of the two generating endpoints, encoded once, around prefixes made per choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pocketllm.types import LogprobEntry, TokenEvent, Usage
from pocketllm_server.wire.responses import chat_logprobs, completion_logprobs

DONE = b"data: [DONE]\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy that gathers small writes would undo streaming
]

_encode = msgspec.json.Encoder().encode


class ChunkWriter:
    """Makes the chunks of one response. A subclass knows its endpoint's shape."""

    object_name = ""

    def __init__(self, response_id: str, created: int, model: str, *, with_usage: bool) -> None:
        # The four keys are the same in every chunk: everything up to the list of choices is made once.
        shared = {"id": response_id, "object": self.object_name, "created": created, "model": model}
        self._head = b"data: " + _encode(shared)[:-1] + b',"choices":['
        # OpenAI puts a null usage in every chunk of a stream whose last chunk carries the counts.
        self._tail = b'],"usage":null}\n\n' if with_usage else b"]}\n\n"
        self._prefixes: dict[int, bytes] = {}

    def opening(self, index: int) -> bytes:
        """What precedes the first token of a choice."""
        return b""

    def chunk(self, index: int, event: TokenEvent) -> bytes:
        """The chunks for one event of choice ``index``: its text, then its end; empty when there is nothing to say."""
        raise NotImplementedError

    def usage(self, usage: Usage) -> bytes:
        return self._head + b'],"usage":' + _encode(usage.as_dict()) + b"}\n\n"

    def _choice(self, index: int, key: bytes, value: bytes, logprobs: bytes, finish: str | None) -> bytes:
        reason = b"null" if finish is None else _encode(str(finish))
        parts = (
            self._prefix(index), key, value, b',"logprobs":', logprobs, b',"finish_reason":', reason, b"}", self._tail,
        )  # fmt: skip
        return b"".join(parts)

    def _prefix(self, index: int) -> bytes:
        prefix = self._prefixes.get(index)
        if prefix is None:
            prefix = self._prefixes[index] = self._head + b'{"index":%d,' % index
        return prefix


class ChatChunkWriter(ChunkWriter):
    object_name = "chat.completion.chunk"

    def opening(self, index: int) -> bytes:
        return self._frame(index, b'{"role":"assistant"}')

    def chunk(self, index: int, event: TokenEvent) -> bytes:
        tool_calls = event.metadata.get("tool_calls")
        if event.text and not event.reasoning_content and not tool_calls:
            delta = b'{"content":' + _encode(event.text) + b"}"
        else:
            parts: dict[str, Any] = {}
            if event.reasoning_content:
                parts["reasoning_content"] = event.reasoning_content
            if event.text:
                parts["content"] = event.text
            if tool_calls:
                parts["tool_calls"] = tool_calls
            delta = _encode(parts) if parts else b""
        data = b""
        if delta or event.logprobs:
            data = self._frame(index, delta or b"{}", event.logprobs)
        if event.finish_reason is not None:
            data += self._frame(index, b"{}", finish=event.finish_reason)
        return data

    def _frame(
        self, index: int, delta: bytes, logprobs: Sequence[LogprobEntry] = (), finish: str | None = None
    ) -> bytes:
        ranked = b"null" if not logprobs else _encode(chat_logprobs(logprobs))
        return self._choice(index, b'"delta":', delta, ranked, finish)


class CompletionChunkWriter(ChunkWriter):
    object_name = "text_completion"

    def __init__(self, response_id: str, created: int, model: str, *, with_usage: bool) -> None:
        super().__init__(response_id, created, model, with_usage=with_usage)
        self._num_chars: dict[int, int] = {}

    def chunk(self, index: int, event: TokenEvent) -> bytes:
        if not event.text and not event.logprobs and event.finish_reason is None:
            return b""
        ranked = b"null"
        if event.logprobs:
            before = self._num_chars.get(index, 0)
            self._num_chars[index] = before + sum(len(entry.token) for entry in event.logprobs)
            ranked = _encode(completion_logprobs(event.logprobs, before))
        return self._choice(index, b'"text":', _encode(event.text), ranked, event.finish_reason)
