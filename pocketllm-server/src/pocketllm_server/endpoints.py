"""The answers of chat and completions, whole or in chunks, in the form that one request asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pocketllm.types import FinishReason, GenerationRequest, GenerationResult, TokenEvent, Usage
from pocketllm_server.served_model import EventStream, ServedModel
from pocketllm_server.settings import ServerSettings
from pocketllm_server.sse import ChatChunkWriter, ChunkForm, ChunkWriter, CompletionChunkWriter, EchoedPrompt
from pocketllm_server.streams import Endpoint
from pocketllm_server.wire.completion_logprobs import TextOffsets, completion_logprobs, prompt_positions
from pocketllm_server.wire.responses import (
    ChatCompletion,
    Completion,
    CompletionChoice,
    chat_choice,
    completion_choice,
    sum_usage,
    total_usage,
)


class _Reply(Endpoint):
    """One request's answer. It knows the prompts once they are accepted."""

    def __init__(self, fields: Mapping[str, Any], requests: Sequence[GenerationRequest]) -> None:
        self._fields = fields
        self._requests = requests
        self._streams: Sequence[EventStream] = ()
        self._with_token_ids = bool(fields.get("return_token_ids"))

    def begin(self, streams: Sequence[EventStream]) -> None:
        self._streams = streams

    def _prompt_ids(self, position: int) -> Sequence[int] | None:
        return self._streams[position].record.request.prompt_tokens if self._with_token_ids else None

    def _form(self, *, with_usage: bool, both_spellings: bool = False) -> ChunkForm:
        return ChunkForm(
            with_usage=with_usage,
            continuous_usage=bool((self._fields.get("stream_options") or {}).get("continuous_usage_stats")),
            num_prompt_tokens=sum(stream.num_prompt_tokens for stream in self._streams),
            with_token_ids=self._with_token_ids,
            both_spellings=both_spellings,
        )


class ChatReply(_Reply):
    prefix = "chatcmpl"

    def __init__(
        self, fields: Mapping[str, Any], requests: Sequence[GenerationRequest], settings: ServerSettings
    ) -> None:
        super().__init__(fields, requests)
        spelling = fields.get("reasoning_field") or getattr(settings, "reasoning_field", "reasoning_content")
        self._both_spellings = spelling == "both"

    def body(self, generation_id: str, created: int, model: str, results: Sequence[GenerationResult], n: int) -> Any:
        (result,) = results
        completion = ChatCompletion(
            id=generation_id,
            created=created,
            model=model,
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

    def chunks(self, generation_id: str, created: int, model: str, *, with_usage: bool) -> ChunkWriter:
        form = self._form(with_usage=with_usage, both_spellings=self._both_spellings)
        return ChatChunkWriter(generation_id, created, model, form=form)

    def opening(self, writer: ChunkWriter, num_choices: int) -> bytes:
        return b"".join(
            writer.opening(index, self._prompt_ids(0) if index == 0 else None) for index in range(num_choices)
        )


class CompletionReply(_Reply):
    prefix = "cmpl"

    def __init__(self, fields: Mapping[str, Any], requests: Sequence[GenerationRequest], model: ServedModel) -> None:
        super().__init__(fields, requests)
        self._model = model
        self._echo = bool(requests[0].metadata.get("echo"))
        self._score_only = bool(requests[0].metadata.get("score_only"))
        self._num_choices = requests[0].sampling_params.n
        self._echoed: set[int] = set()

    def body(self, generation_id: str, created: int, model: str, results: Sequence[GenerationResult], n: int) -> Any:
        # A deadline may have left a prompt without an answer: the others keep their numbers.
        positions = {request.request_id: position for position, request in enumerate(self._requests)}
        choices: list[CompletionChoice] = []
        for result in results:
            position = positions[result.request_id]
            prompt = self._echoed_prompt(position) if self._echo else None
            for choice in result.choices:
                made = completion_choice(position * n + choice.index, choice)
                if self._with_token_ids:
                    made.token_ids = () if self._score_only else choice.token_ids
                    made.prompt_token_ids = self._prompt_ids(position) or ()
                if prompt is not None:
                    self._prepend(made, prompt, choice.logprobs or ())
                choices.append(made)
        usage = self.usage_of(sum_usage([result.usage for result in results])).as_dict()
        return Completion(id=generation_id, created=created, model=model, choices=choices, usage=usage)

    def _prepend(self, made: CompletionChoice, prompt: EchoedPrompt, generated: Sequence[Any]) -> None:
        made.text = prompt.text if self._score_only else prompt.text + made.text
        if self._score_only:
            made.finish_reason = FinishReason.LENGTH.value
        if prompt.positions is not None:
            entries = [*prompt.positions, *(() if self._score_only else generated)]
            made.logprobs = completion_logprobs(entries, TextOffsets(prompt.offset))

    def chunks(self, generation_id: str, created: int, model: str, *, with_usage: bool) -> ChunkWriter:
        return CompletionChunkWriter(generation_id, created, model, form=self._form(with_usage=with_usage))

    def opening(self, writer: ChunkWriter, num_choices: int) -> bytes:
        return b"".join(
            writer.opening(index, self._prompt_ids(index // self._num_choices)) for index in range(num_choices)
        )

    def encode(self, writer: ChunkWriter, index: int, event: TokenEvent) -> bytes:
        if not self._echo or not isinstance(writer, CompletionChunkWriter):
            return writer.chunk(index, event)
        data = b""
        if index not in self._echoed:
            # With the first event the engine has reported the prompt's log probabilities, if any.
            self._echoed.add(index)
            data = writer.echo(index, self._echoed_prompt(index // self._num_choices))
        if self._score_only:
            finish = event.finish_reason
            ended = finish if finish in (None, FinishReason.CANCELLED, FinishReason.ERROR) else FinishReason.LENGTH
            event = msgspec.structs.replace(event, text="", token_ids=(), logprobs=(), finish_reason=ended)
        return data + writer.chunk(index, event)

    def usage_of(self, usage: Usage) -> Usage:
        # The one token behind a scored prompt was not asked for.
        return msgspec.structs.replace(usage, completion_tokens=0) if self._score_only else usage

    def _echoed_prompt(self, position: int) -> EchoedPrompt:
        record = self._streams[position].record
        token_ids = record.request.prompt_tokens
        tokenizer = self._model.host.tokenizer
        given = self._requests[position].prompt
        text = given if given is not None else tokenizer.decode(token_ids, skip_special=False)
        if not record.request.sampling_params.prompt_logprobs:
            return EchoedPrompt(text)
        positions, offset = prompt_positions(tokenizer, token_ids, record.prompt_logprobs or (), text)
        return EchoedPrompt(text, positions, offset)
