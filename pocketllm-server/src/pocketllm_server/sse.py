"""Server-sent events of the two generating endpoints, encoded once, around prefixes made per choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pocketllm.types import TokenEvent, Usage
from pocketllm_server.wire.completion_logprobs import Position, TextOffsets, completion_logprobs
from pocketllm_server.wire.responses import chat_logprobs, indexed_calls

DONE = b"data: [DONE]\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy that gathers small writes would undo streaming
]

_encode = msgspec.json.Encoder().encode


class ChunkForm(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asked of the chunks beyond their text."""

    with_usage: bool = False
    continuous_usage: bool = False
    num_prompt_tokens: int = 0
    """Of all prompts together, for the usage in every chunk."""
    with_token_ids: bool = False
    both_spellings: bool = False


class EchoedPrompt(msgspec.Struct, frozen=True):
    """A prompt that stands in front of its completions."""

    text: str
    positions: list[Position] | None = None
    """None: no log probabilities were asked for."""
    offset: int = 0


class ChunkWriter:
    """Makes the chunks of one response. A subclass knows its endpoint's shape."""

    object_name = ""

    def __init__(
        self, response_id: str, created: int, model: str, *, with_usage: bool = False, form: ChunkForm | None = None
    ) -> None:
        self.form = form or ChunkForm(with_usage=with_usage)
        # The four keys are the same in every chunk: everything up to the list of choices is made once.
        shared = {"id": response_id, "object": self.object_name, "created": created, "model": model}
        self._head = b"data: " + _encode(shared)[:-1] + b',"choices":['
        # OpenAI puts a null usage in every chunk of a stream whose last chunk carries the counts.
        self._tail = b'],"usage":null}\n\n' if self.form.with_usage else b"]}\n\n"
        self._prefixes: dict[int, bytes] = {}
        self._num_tokens = 0

    def opening(self, index: int, prompt_token_ids: Sequence[int] | None = None) -> bytes:
        """What precedes the first token of a choice; with the prompt's ids, where a request asked for them."""
        return b""

    def chunk(self, index: int, event: TokenEvent) -> bytes:
        """The chunks for one event of choice ``index``: its text, then its end; empty when there is nothing to say."""
        raise NotImplementedError

    def usage(self, usage: Usage) -> bytes:
        return self._head + b'],"usage":' + _encode(usage.as_dict()) + b"}\n\n"

    def _choice(
        self,
        index: int,
        key: bytes,
        value: bytes,
        logprobs: bytes,
        finish: str | None,
        extra: bytes = b"",
        shared: bytes = b"",
    ) -> bytes:
        """One chunk. ``extra`` are further members of the choice, ``shared`` of the chunk, each with its comma."""
        reason = b"null" if finish is None else _encode(str(finish))
        tail = self._tail
        if self.form.continuous_usage:
            so_far = Usage(prompt_tokens=self.form.num_prompt_tokens, completion_tokens=self._num_tokens)
            tail = b'],"usage":' + _encode(so_far.as_dict()) + b"}\n\n"
        if shared:
            tail = b"]" + shared + tail[1:]
        prefix = self._prefixes.get(index)
        if prefix is None:
            prefix = self._prefixes[index] = self._head + b'{"index":%d,' % index
        parts = (
            prefix, key, value, b',"logprobs":', logprobs, b',"finish_reason":', reason, extra, b"}", tail,
        )  # fmt: skip
        return b"".join(parts)


class ChatChunkWriter(ChunkWriter):
    object_name = "chat.completion.chunk"

    def __init__(
        self, response_id: str, created: int, model: str, *, with_usage: bool = False, form: ChunkForm | None = None
    ) -> None:
        super().__init__(response_id, created, model, with_usage=with_usage, form=form)
        self._num_calls: dict[int, int] = {}

    def opening(self, index: int, prompt_token_ids: Sequence[int] | None = None) -> bytes:
        shared = b"" if prompt_token_ids is None else b',"prompt_token_ids":' + _encode(prompt_token_ids)
        return self._choice(index, b'"delta":', b'{"role":"assistant"}', b"null", None, shared=shared)

    def chunk(self, index: int, event: TokenEvent) -> bytes:
        self._num_tokens += len(event.token_ids)
        tool_calls = event.metadata.get("tool_calls")
        if event.text and not event.reasoning_content and not tool_calls:
            delta = b'{"content":' + _encode(event.text) + b"}"
        else:
            delta = self._mixed_delta(index, event, tool_calls)
        data = b""
        ids = b""
        if self.form.with_token_ids and event.token_ids:
            ids = b',"token_ids":' + _encode(event.token_ids)
        if delta or event.logprobs or ids:
            ranked = b"null" if not event.logprobs else _encode(chat_logprobs(event.logprobs))
            data = self._choice(index, b'"delta":', delta or b"{}", ranked, None, ids)
        if event.finish_reason is not None:
            data += self._choice(index, b'"delta":', b"{}", b"null", event.finish_reason)
        return data

    def _mixed_delta(self, index: int, event: TokenEvent, tool_calls: list[dict[str, Any]] | None) -> bytes:
        parts: dict[str, Any] = {}
        if event.reasoning_content:
            parts["reasoning_content"] = event.reasoning_content
            if self.form.both_spellings:
                parts["reasoning"] = event.reasoning_content
        if event.text:
            parts["content"] = event.text
        if tool_calls:
            before = self._num_calls.get(index, 0)
            self._num_calls[index] = before + len(tool_calls)
            parts["tool_calls"] = indexed_calls(tool_calls, before)
        return _encode(parts) if parts else b""


class CompletionChunkWriter(ChunkWriter):
    object_name = "text_completion"

    def __init__(
        self, response_id: str, created: int, model: str, *, with_usage: bool = False, form: ChunkForm | None = None
    ) -> None:
        super().__init__(response_id, created, model, with_usage=with_usage, form=form)
        self._offsets: dict[int, TextOffsets] = {}
        self._prompt_ids: dict[int, bytes] = {}

    def opening(self, index: int, prompt_token_ids: Sequence[int] | None = None) -> bytes:
        if prompt_token_ids is not None:  # they go with the choice's first chunk
            self._prompt_ids[index] = b',"prompt_token_ids":' + _encode(prompt_token_ids)
        return b""

    def echo(self, index: int, prompt: EchoedPrompt) -> bytes:
        """The chunk that begins a choice with its prompt."""
        ranked = b"null"
        if prompt.positions is not None:
            offsets = self._offsets[index] = TextOffsets(prompt.offset)
            ranked = _encode(completion_logprobs(prompt.positions, offsets))
        ids = b',"token_ids":[]' if self.form.with_token_ids else b""
        return self._text(index, _encode(prompt.text), ranked, None, ids)

    def chunk(self, index: int, event: TokenEvent) -> bytes:
        self._num_tokens += len(event.token_ids)
        with_ids = self.form.with_token_ids
        if not event.text and not event.logprobs and event.finish_reason is None and not (with_ids and event.token_ids):
            return b""
        ranked = b"null"
        if event.logprobs:
            offsets = self._offsets.get(index)
            if offsets is None:
                offsets = self._offsets[index] = TextOffsets()
            ranked = _encode(completion_logprobs(event.logprobs, offsets))
        ids = b',"token_ids":' + _encode(event.token_ids) if with_ids else b""
        return self._text(index, _encode(event.text), ranked, event.finish_reason, ids)

    def _text(self, index: int, text: bytes, ranked: bytes, finish: str | None, extra: bytes) -> bytes:
        if self._prompt_ids:
            extra += self._prompt_ids.pop(index, b"")
        return self._choice(index, b'"text":', text, ranked, finish, extra)
