"""The answer of ``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pocketllm.prompt_spec import PromptSpec
from pocketllm.types import FinishReason, GenerationResult, TokenEvent, Usage
from pocketllm_server.answers.choices import ChoicesReply
from pocketllm_server.answers.generation import Generation
from pocketllm_server.answers.sse import encode
from pocketllm_server.config.settings import ServerSettings
from pocketllm_server.wire.completions_answer import Completion, CompletionChoice, completion_choice, sum_usage
from pocketllm_server.wire.completions_logprobs import Position, TextOffsets, completion_logprobs, prompt_positions


class EchoedPrompt(msgspec.Struct, frozen=True):
    """A prompt that stands in front of its completions."""

    text: str
    positions: list[Position] | None = None
    """None: no log probabilities were asked for."""
    offset: int = 0


class CompletionReply(ChoicesReply):
    """``echo`` puts each prompt in front of its choices; with ``max_tokens`` 0 the prompt is all, and only scored."""

    id_prefix = "cmpl"
    object_name = "text_completion"

    def __init__(self, generation: Generation, fields: Mapping[str, Any], settings: ServerSettings) -> None:
        super().__init__(generation, fields, settings)
        self._requests = generation.requests
        spec = PromptSpec.of(self._requests[0].metadata)
        self._echo, self._score_only = spec.echo, spec.score_only
        self._echoed: set[int] = set()
        self._offsets: dict[int, TextOffsets] = {}
        self._unsent_prompt_ids: dict[int, bytes] = {}

    def opening(self) -> bytes:
        """Nothing: a prompt's ids go with the first frame of each of its choices."""
        num_choices = self._generation.num_choices
        for index in range(len(self._generation.streams) * num_choices):
            prompt_ids = self._prompt_ids(index // num_choices)
            if prompt_ids is not None:
                self._unsent_prompt_ids[index] = b',"prompt_token_ids":' + encode(prompt_ids)
        return b""

    def take(self, index: int, event: TokenEvent) -> bytes:
        before = b""
        if self._echo:
            before, event = self._behind_prompt(index, event)
        self._num_tokens += len(event.token_ids)
        with_ids = self._with_token_ids
        if not event.text and not event.logprobs and event.finish_reason is None and not (with_ids and event.token_ids):
            return before
        ranked = b"null"
        if event.logprobs:
            offsets = self._offsets.get(index)
            if offsets is None:
                offsets = self._offsets[index] = TextOffsets()
            ranked = encode(completion_logprobs(event.logprobs, offsets))
        extra = b',"token_ids":' + encode(event.token_ids) if with_ids else b""
        if self._unsent_prompt_ids:
            extra += self._unsent_prompt_ids.pop(index, b"")
        return before + self._frame(index, b'"text":', encode(event.text), ranked, event.finish_reason, extra)

    def body(self, results: Sequence[GenerationResult]) -> Completion:
        num_choices = self._generation.num_choices
        # A deadline may have left a prompt without an answer: the others keep their numbers.
        positions = {request.request_id: position for position, request in enumerate(self._requests)}
        choices: list[CompletionChoice] = []
        for result in results:
            position = positions[result.request_id]
            prompt = self._echoed_prompt(position) if self._echo else None
            for choice in result.choices:
                made = completion_choice(position * num_choices + choice.index, choice)
                if self._with_token_ids:
                    made.token_ids = () if self._score_only else choice.token_ids
                    made.prompt_token_ids = self._prompt_ids(position) or ()
                if prompt is not None:
                    self._prepend(made, prompt, choice.logprobs or ())
                choices.append(made)
        return Completion(
            id=self._generation.response_id,
            created=self._generation.created,
            model=self._generation.model.name,
            choices=choices,
            usage=self._usage_told(sum_usage([result.usage for result in results])).as_dict(),
        )

    def _usage_told(self, usage: Usage) -> Usage:
        # The one token behind a scored prompt was not asked for.
        return msgspec.structs.replace(usage, completion_tokens=0) if self._score_only else usage

    # -- echoed prompts -------------------------------------------------------------------------------------------

    def _behind_prompt(self, index: int, event: TokenEvent) -> tuple[bytes, TokenEvent]:
        """The prompt's frame where it was not sent yet, and what of the event goes behind it."""
        before = b""
        if index not in self._echoed:
            # With the first event the engine has reported the prompt's log probabilities, if any.
            self._echoed.add(index)
            before = self._prompt(index)
        if self._score_only:
            event = msgspec.structs.replace(event, text="", token_ids=(), logprobs=())
            if event.finish_reason not in (None, FinishReason.CANCELLED):
                event = msgspec.structs.replace(event, finish_reason=FinishReason.LENGTH)
        return before, event

    def _prompt(self, index: int) -> bytes:
        """The frame that begins a choice with its prompt."""
        prompt = self._echoed_prompt(index // self._generation.num_choices)
        ranked = b"null"
        if prompt.positions is not None:
            offsets = self._offsets[index] = TextOffsets(prompt.offset)
            ranked = encode(completion_logprobs(prompt.positions, offsets))
        extra = b',"token_ids":[]' if self._with_token_ids else b""
        extra += self._unsent_prompt_ids.pop(index, b"")
        return self._frame(index, b'"text":', encode(prompt.text), ranked, None, extra)

    def _prepend(self, made: CompletionChoice, prompt: EchoedPrompt, generated: Sequence[Any]) -> None:
        made.text = prompt.text if self._score_only else prompt.text + made.text
        if self._score_only:
            made.finish_reason = FinishReason.LENGTH.value
        if prompt.positions is not None:
            entries = [*prompt.positions, *(() if self._score_only else generated)]
            made.logprobs = completion_logprobs(entries, TextOffsets(prompt.offset))

    def _echoed_prompt(self, position: int) -> EchoedPrompt:
        record = self._generation.streams[position].record
        token_ids = record.request.prompt_tokens
        tokenizer = self._generation.model.client.host.tokenizer
        given = self._requests[position].prompt
        text = given if given is not None else tokenizer.decode(token_ids, skip_special=False)
        if not record.request.sampling_params.prompt_logprobs:
            return EchoedPrompt(text)
        positions, offset = prompt_positions(tokenizer, token_ids, record.prompt_logprobs or (), text)
        return EchoedPrompt(text, positions, offset)
