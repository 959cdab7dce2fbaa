"""The prompt boundary: from messages or text to the token ids, limits and stop ids an engine gets."""

from __future__ import annotations

import functools
import itertools
import logging
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from pocketllm.errors import ConfigurationError, ContextLengthError, PocketLLMError, UnsupportedFeatureError
from pocketllm.fields.requests import effective_temperature
from pocketllm.fields.token_ids import check_token_ids
from pocketllm.prompt.constraint import final_constraint
from pocketllm.prompt_spec import PromptSpec
from pocketllm.protocol.conversation import cut_at_mark, mark_final_message
from pocketllm.text.chat_formats import find_chat_format
from pocketllm.text.fallback_prompt import render_fallback_prompt
from pocketllm.text.fill_in_middle import find_gap_tokens
from pocketllm.text.reasoning import END_TAG, START_TAG, ReasoningMode, detect_mode
from pocketllm.text.stop_strings import StopStrings
from pocketllm.text.tool_calls import recognise
from pocketllm.text.tool_calls.base import ToolCallStream, ToolCallSyntax
from pocketllm.types import Capabilities, Choice, GenerationRequest

if TYPE_CHECKING:
    from pocketllm.checkpoint import Checkpoint
    from pocketllm.text.chat_template import ChatTemplate

logger = logging.getLogger("pocketllm.engine")

# Handles are unique in the process, across hosts and epochs, so that a late event can never reach a stranger.
_handles = itertools.count(1)

MAX_SEED = 2**63 - 1
EAGER = "eager"
"""``tool_call_streaming``: call deltas leave before the call is certain; the default holds them until it is."""


class Prepared(msgspec.Struct, frozen=True):
    """A request as the engine gets it, and how its completion begins."""

    request: GenerationRequest
    reasoning_mode: ReasoningMode
    stops: StopStrings
    new_call_stream: Callable[[], ToolCallStream] | None = None
    """Makes the reader of one choice's tool calls; None when calls stay in the text."""


class PromptBuilder:
    """Renders and tokenizes for one checkpoint. Threads: any; the tokenizer and the template are shared safely."""

    def __init__(
        self, checkpoint: Checkpoint, eos_override: object = None, extra_syntaxes: Sequence[ToolCallSyntax] = ()
    ) -> None:
        self.checkpoint = checkpoint
        self.tokenizer = checkpoint.tokenizer()
        self.eos_token_ids, self.eos_source = checkpoint.eos_token_ids(eos_override)
        self.syntax = recognise(checkpoint.chat_template(tools=True), checkpoint.model_type, extra_syntaxes)
        """How this checkpoint writes tool calls; None: nobody here reads them."""
        marks = (START_TAG, END_TAG, *(self.syntax.special_texts if self.syntax is not None else ()))
        ids = (self.tokenizer.token_id(mark) for mark in marks)
        self.kept_ids = tuple(token for token in ids if token is not None)
        """Some vocabularies hold these marks as control tokens; they must reach the text all the same."""
        self.gap_tokens = find_gap_tokens(self.tokenizer, checkpoint.metadata)
        """With these a completion can be fitted in front of a suffix; None: the checkpoint was not trained for it."""
        self._chat_format = find_chat_format(checkpoint.model_type, checkpoint.path.name)
        self._max_token_chars = self.tokenizer.max_token_chars
        self._templates: dict[bool, ChatTemplate | None] = {}
        self._warm()

    def prepare(self, request: GenerationRequest, capabilities: Capabilities) -> Prepared:
        """Render, tokenize, check that it fits, and fill in budget, choices, seeds and stop ids.

        Raises:
            ContextLengthError: the prompt, or prompt plus explicit budget, exceeds the context; names both numbers.
            ConfigurationError: the messages do not render, the prompt is empty, or an id is outside the vocabulary.
        """
        params = request.sampling_params
        spec = PromptSpec.of(request.metadata)
        limit = capabilities.max_model_len
        vocab_size = self._vocab_size(capabilities)
        tokens, mode = self._tokens(request, spec, limit)
        self._check_length(spec, len(tokens), limit)
        check_token_ids("prompt", tokens, vocab_size)
        if params.max_tokens is not None and len(tokens) + params.max_tokens > limit:
            raise ContextLengthError(
                f"The prompt has {len(tokens)} tokens and max_tokens asks for {params.max_tokens} more, together "
                f"{len(tokens) + params.max_tokens}, but {_context(limit)}: lower max_tokens to {limit - len(tokens)} "
                "or shorten the prompt.",
                param="max_tokens",
            )
        budget = params.token_budget(limit - len(tokens))
        if params.min_tokens > budget:
            raise ContextLengthError(
                f"min_tokens asks for {params.min_tokens} tokens, but only {budget} fit behind a prompt of "
                f"{len(tokens)} tokens: lower min_tokens.",
                param="min_tokens",
            )
        check_token_ids("stop_token_ids", params.stop_token_ids, vocab_size)
        check_token_ids("logit_bias", params.logit_bias, vocab_size)
        # Any 64-bit seed is accepted; engines get one that fits a signed word whatever the choice adds to it.
        seed = params.seed if params.seed is not None else random.getrandbits(62)
        choices = tuple(Choice(handle=next(_handles), seed=(seed + index) & MAX_SEED) for index in range(params.n))
        prepared = msgspec.structs.replace(
            request,
            prompt=None,
            prompt_tokens=tuple(tokens),
            choices=choices,
            stop_token_ids=self._stop_ids(request, capabilities),
            sampling_params=msgspec.structs.replace(
                params,
                max_tokens=budget,
                stop=(),
                response_format=None,
                temperature=effective_temperature(params, capabilities),
            ),
            constraint=final_constraint(request, spec, mode, self.syntax, self.tokenizer),
        )
        return Prepared(prepared, mode, StopStrings(params.stop), self._call_reader(spec))

    def _vocab_size(self, capabilities: Capabilities) -> int:
        # A model may have fewer ids than its tokenizer, as where the vocabulary was extended after training.
        return min(self.tokenizer.vocab_size, capabilities.vocab_size or self.tokenizer.vocab_size)

    def _call_reader(self, spec: PromptSpec) -> Callable[[], ToolCallStream] | None:
        if self.syntax is None or spec.messages is None or spec.tool_choice == "none":
            return None
        # A call that a grammar forces is certain from its first token on.
        eager = spec.forces_calls or spec.tool_call_streaming == EAGER
        return functools.partial(self.syntax.stream, spec.tools, eager=eager)

    def _warm(self) -> None:
        """Compile the template and run the tokenizer once, here on the loader's thread and not in the first request."""
        try:
            self.tokenizer.encode(self._rendered(PromptSpec(messages=[{"role": "user", "content": "warm"}]))[0])
        except PocketLLMError as error:
            # Some templates refuse such a conversation; a request that they refuse gets the same message.
            logger.debug("the chat template does not render a plain question: %s", error)

    def _check_length(self, spec: PromptSpec, num_tokens: int, limit: int, at_least: str = "") -> None:
        if num_tokens >= limit:
            raise ContextLengthError(
                f"The prompt has {at_least}{num_tokens} tokens, and {_context(limit)}, which leaves no room for an "
                "answer: shorten the prompt.",
                param="prompt" if spec.messages is None else "messages",
            )

    def _check_text(self, spec: PromptSpec, text: str, limit: int) -> None:
        """Refuse what cannot fit before the tokenizer spends seconds on it."""
        self._check_length(spec, len(text) // self._max_token_chars, limit, "at least ")

    def _tokens(self, request: GenerationRequest, spec: PromptSpec, limit: int) -> tuple[Sequence[int], ReasoningMode]:
        if request.prompt_tokens:
            return request.prompt_tokens, ReasoningMode.NONE
        if spec.messages is None:
            self._check_text(spec, request.prompt or "", limit)
            tokens = self._completion_tokens(request.prompt or "", spec, limit)
            mode = ReasoningMode.NONE
        else:
            text, has_template = self._rendered(spec, request.sampling_params.response_format)
            self._check_text(spec, text, limit)
            # A template prints the begin token itself when it wants one.
            tokens = self.tokenizer.encode(text, add_bos=False if has_template else None)
            mode = detect_mode(text) if has_template else ReasoningMode.NONE
        if not tokens:
            raise ConfigurationError("The prompt is empty: give at least one token of text.", param="prompt")
        return tokens, mode

    def _completion_tokens(self, prompt: str, spec: PromptSpec, limit: int) -> list[int]:
        if not spec.suffix or self.gap_tokens is None:  # without the tokens the capability check has refused a suffix
            return self.tokenizer.encode(prompt)
        self._check_text(spec, spec.suffix, limit)
        # A person's text around the gap must not bring control tokens of its own.
        prefix = self.tokenizer.encode(prompt, parse_special=False)
        after = self.tokenizer.encode(spec.suffix, add_bos=False, parse_special=False)
        bos = self.tokenizer.bos_token_id
        if bos is not None and prefix[:1] == [bos]:
            return [bos, *self.gap_tokens.frame(prefix[1:], after)]
        return self.gap_tokens.frame(prefix, after)

    def render(self, request: GenerationRequest) -> tuple[str, bool]:
        """The conversation as prompt text, and whether the checkpoint's own template or a known format made it.

        Raises:
            UnsupportedFeatureError: tools, and neither a template nor a format that shows them.
        """
        return self._rendered(PromptSpec.of(request.metadata), request.sampling_params.response_format)

    def _rendered(self, spec: PromptSpec, response_format: dict[str, Any] | None = None) -> tuple[str, bool]:
        messages = spec.messages or []
        if spec.continue_final_message:
            text, has_template = self._render(mark_final_message(messages), spec, response_format)
            return cut_at_mark(text), has_template
        return self._render(messages, spec, response_format)

    def _render(
        self, messages: list[dict[str, Any]], spec: PromptSpec, response_format: dict[str, Any] | None
    ) -> tuple[str, bool]:
        tools = spec.tools or None
        template = self._template(tools is not None)
        if template is not None:
            if tools is not None and not template.shows_tools:
                raise _tools_unseen("its chat template does not show them to the model")
            variables = _template_variables(spec, template)
            text = template.render(messages, tools=tools, add_generation_prompt=spec.add_generation_prompt, **variables)
            return text, True
        if self._chat_format is not None:
            text = self._chat_format.encode(
                messages,
                tools=tools,
                thinking_mode=spec.thinking_mode or "chat",
                reasoning_effort=spec.reasoning_effort,
                drop_thinking=spec.drop_thinking,
                response_format=response_format,
                add_generation_prompt=spec.add_generation_prompt,
            )
            return text, True
        if tools is not None:
            raise _tools_unseen("it has no chat template that could show them to the model")
        return render_fallback_prompt(messages, add_generation_prompt=spec.add_generation_prompt), False

    def _template(self, with_tools: bool) -> ChatTemplate | None:
        if with_tools not in self._templates:
            from pocketllm.text.chat_template import ChatTemplate

            source = self.checkpoint.chat_template(tools=with_tools)
            tokenizer = self.tokenizer
            self._templates[with_tools] = (
                None
                if source is None
                else ChatTemplate(source, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token)
            )
        return self._templates[with_tools]

    def _stop_ids(self, request: GenerationRequest, capabilities: Capabilities) -> tuple[int, ...]:
        params = request.sampling_params
        eos = capabilities.eos_token_ids or self.eos_token_ids
        ids = params.stop_token_ids if params.ignore_eos else (*eos, *params.stop_token_ids)
        return tuple(dict.fromkeys(ids))


def _template_variables(spec: PromptSpec, template: ChatTemplate) -> dict[str, Any]:
    variables: dict[str, Any] = {}
    if spec.thinking_mode is not None:
        variables["enable_thinking"] = spec.thinking_mode == "thinking"
    effort = spec.reasoning_effort
    if effort is not None:
        # Templates that know "xhigh" have no "high" and no "max" (Qwen); the others take OpenAI's words.
        speaks_xhigh = "xhigh" in template.source
        variables["reasoning_effort"] = "xhigh" if speaks_xhigh and effort in ("high", "max") else effort
    variables.update(spec.chat_template_kwargs)
    return variables


def _tools_unseen(why: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f'"tools" is not supported with this checkpoint: {why}. Remove "tools", send "tool_choice" as "none", or put a '
        "chat_template.jinja that shows them beside the weights.",
        param="tools",
    )


def _context(limit: int) -> str:
    # Clients that shorten a conversation and try again know an overflow by these words, not by its code.
    return f"this model's maximum context length is {limit} tokens"
