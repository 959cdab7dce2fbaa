"""The answer of ``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pocketllm.types import GenerationResult, TokenEvent
from pocketllm_server.answers.choices import ChoicesReply
from pocketllm_server.answers.generation import Generation
from pocketllm_server.answers.sse import encode
from pocketllm_server.answers.tool_calls import CallNumbers
from pocketllm_server.config.settings import ServerSettings
from pocketllm_server.wire.completions_answer import ChatCompletion, chat_choice, chat_logprobs, total_usage


class ChatReply(ChoicesReply):
    """There is one prompt, so an index is that of a choice."""

    id_prefix = "chatcmpl"
    object_name = "chat.completion.chunk"

    def __init__(self, generation: Generation, fields: Mapping[str, Any], settings: ServerSettings) -> None:
        super().__init__(generation, fields, settings)
        self._both_spellings = (fields.get("reasoning_field") or settings.reasoning_field) == "both"
        self._call_numbers: dict[int, CallNumbers] = {}

    def opening(self) -> bytes:
        return b"".join(self._opening(index) for index in range(self._generation.num_choices))

    def _opening(self, index: int) -> bytes:
        prompt_ids = self._prompt_ids(0) if index == 0 else None
        shared = b"" if prompt_ids is None else b',"prompt_token_ids":' + encode(prompt_ids)
        return self._frame(index, b'"delta":', b'{"role":"assistant"}', b"null", None, shared=shared)

    def take(self, index: int, event: TokenEvent) -> bytes:
        self._num_tokens += len(event.token_ids)
        tool_calls = event.metadata.get("tool_calls")
        if event.text and not event.reasoning_content and not tool_calls:
            delta = b'{"content":' + encode(event.text) + b"}"
        else:
            delta = self._mixed_delta(index, event, tool_calls)
        data = b""
        ids = b""
        if self._with_token_ids and event.token_ids:
            ids = b',"token_ids":' + encode(event.token_ids)
        if delta or event.logprobs or ids:
            ranked = b"null" if not event.logprobs else encode(chat_logprobs(event.logprobs))
            data = self._frame(index, b'"delta":', delta or b"{}", ranked, None, ids)
        if event.finish_reason is not None:
            data += self._frame(index, b'"delta":', b"{}", b"null", event.finish_reason)
        return data

    def body(self, results: Sequence[GenerationResult]) -> ChatCompletion:
        (result,) = results
        completion = ChatCompletion(
            id=self._generation.response_id,
            created=self._generation.created,
            model=self._generation.model.name,
            choices=[
                chat_choice(
                    choice.index,
                    choice,
                    both_spellings=self._both_spellings,
                    with_token_ids=self._with_token_ids,
                )
                for choice in result.choices
            ],
            usage=total_usage(results),
        )
        prompt_ids = self._prompt_ids(0)
        if prompt_ids is not None:
            completion.prompt_token_ids = prompt_ids
        return completion

    def _mixed_delta(self, index: int, event: TokenEvent, tool_calls: Sequence[Mapping[str, Any]] | None) -> bytes:
        parts: dict[str, Any] = {}
        if event.reasoning_content:
            parts["reasoning_content"] = event.reasoning_content
            if self._both_spellings:
                parts["reasoning"] = event.reasoning_content
        if event.text:
            parts["content"] = event.text
        if tool_calls:
            numbers = self._call_numbers.setdefault(index, CallNumbers())
            parts["tool_calls"] = [piece.as_dict() for piece in numbers.pieces(tool_calls)]
        return encode(parts) if parts else b""
