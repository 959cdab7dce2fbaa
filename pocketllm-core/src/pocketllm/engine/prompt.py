"""The prompt boundary: from messages or text to the token ids, limits and stop ids an engine gets."""

from __future__ import annotations

import itertools
import logging
import random
from typing import TYPE_CHECKING, Any

import msgspec

from pocketllm.errors import ConfigurationError, ContextLengthError, PocketLLMError
from pocketllm.text.reasoning import END_TAG, START_TAG, ReasoningMode, detect_mode
from pocketllm.types import Capabilities, Choice, Constraint, GenerationRequest

if TYPE_CHECKING:
    from pocketllm.checkpoint import Checkpoint
    from pocketllm.text.chat_template import ChatTemplate

logger = logging.getLogger("pocketllm.engine")

# Handles are unique in the process, across slots and epochs, so that a late event can never reach a stranger.
_handles = itertools.count(1)

MAX_SEED = 2**63 - 1


class Prepared(msgspec.Struct, frozen=True):
    """A request as the engine gets it, and how its completion begins."""

    request: GenerationRequest
    reasoning_mode: ReasoningMode


class PromptBuilder:
    """Renders and tokenizes for one checkpoint. Threads: any; the tokenizer and the template are shared safely."""

    def __init__(self, checkpoint: Checkpoint, eos_override: object = None) -> None:
        self.checkpoint = checkpoint
        self.tokenizer = checkpoint.tokenizer()
        self.eos_token_ids, self.eos_source = checkpoint.eos_token_ids(eos_override)
        tags = (self.tokenizer.token_id(START_TAG), self.tokenizer.token_id(END_TAG))
        self.reasoning_tag_ids = tuple(tag for tag in tags if tag is not None)
        """Some vocabularies mark the reasoning tags as control tokens; they must reach the text all the same."""
        self._templates: dict[bool, ChatTemplate | None] = {}
        self._warm()

    def prepare(self, request: GenerationRequest, capabilities: Capabilities) -> Prepared:
        """Render, tokenize, check that it fits, and fill in budget, choices, seeds and stop ids.

        Raises:
            ContextLengthError: the prompt, or prompt plus explicit budget, exceeds the context; names both numbers.
            ConfigurationError: the messages do not render, the prompt is empty, or an id is outside the vocabulary.
        """
        tokens, mode = self._tokens(request)
        params = request.sampling_params
        limit = capabilities.max_model_len
        if len(tokens) >= limit:
            raise ContextLengthError(
                f"The prompt has {len(tokens)} tokens, and this engine's context of {limit} tokens leaves no room for "
                "an answer: shorten the prompt.",
                param="messages" if "messages" in request.metadata else "prompt",
            )
        if params.max_tokens is not None and len(tokens) + params.max_tokens > limit:
            raise ContextLengthError(
                f"The prompt has {len(tokens)} tokens and max_tokens asks for {params.max_tokens} more, together "
                f"{len(tokens) + params.max_tokens}, but this engine's context is {limit} tokens: lower max_tokens to "
                f"{limit - len(tokens)} or shorten the prompt.",
                param="max_tokens",
            )
        budget = params.token_budget(limit - len(tokens))
        if params.min_tokens > budget:
            raise ContextLengthError(
                f"min_tokens asks for {params.min_tokens} tokens, but only {budget} fit behind a prompt of "
                f"{len(tokens)} tokens: lower min_tokens.",
                param="min_tokens",
            )
        self._check_ids("stop_token_ids", params.stop_token_ids)
        self._check_ids("logit_bias", tuple(params.logit_bias))
        # Any 64-bit seed is accepted; engines get one that fits a signed word whatever the choice adds to it.
        seed = params.seed if params.seed is not None else random.getrandbits(62)
        choices = tuple(Choice(handle=next(_handles), seed=(seed + index) & MAX_SEED) for index in range(params.n))
        prepared = msgspec.structs.replace(
            request,
            prompt=None,
            prompt_tokens=tuple(tokens),
            choices=choices,
            stop_token_ids=self._stop_ids(request, capabilities),
            sampling_params=msgspec.structs.replace(params, max_tokens=budget, stop=(), response_format=None),
            constraint=request.constraint or _constraint(params.response_format),
        )
        return Prepared(prepared, mode)

    def _warm(self) -> None:
        """Compile the template and run the tokenizer once, here on the loader's thread and not in the first request."""
        request = GenerationRequest(prompt="", metadata={"messages": [{"role": "user", "content": "warm"}]})
        try:
            self.tokenizer.encode(self.render(request)[0])
        except PocketLLMError as error:
            # Some templates refuse such a conversation; a request that they refuse gets the same message.
            logger.debug("the chat template does not render a plain question: %s", error)

    def _tokens(self, request: GenerationRequest) -> tuple[list[int], ReasoningMode]:
        if request.prompt_tokens:
            self._check_ids("prompt_tokens", request.prompt_tokens)
            return list(request.prompt_tokens), ReasoningMode.NONE
        if "messages" not in request.metadata:
            tokens = self.tokenizer.encode(request.prompt or "")
            mode = ReasoningMode.NONE
        else:
            text, has_template = self.render(request)
            # A template prints the begin token itself when it wants one.
            tokens = self.tokenizer.encode(text, add_bos=False if has_template else None)
            mode = detect_mode(text) if has_template else ReasoningMode.NONE
        if not tokens:
            raise ConfigurationError("The prompt is empty: give at least one token of text.", param="prompt")
        return tokens, mode

    def render(self, request: GenerationRequest) -> tuple[str, bool]:
        """The conversation as prompt text, and whether the checkpoint's own template made it."""
        metadata = request.metadata
        tools = metadata.get("tools") or None
        template = self._template(tools is not None)
        add_generation_prompt = metadata.get("add_generation_prompt", True)
        if template is None:
            from pocketllm.text.fallback_prompt import render_fallback_prompt

            text = render_fallback_prompt(metadata["messages"], add_generation_prompt=add_generation_prompt)
            return text, False
        text = template.render(
            metadata["messages"],
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            **self._template_variables(metadata, template),
        )
        return text, True

    def _template_variables(self, metadata: dict[str, Any], template: ChatTemplate) -> dict[str, Any]:
        variables: dict[str, Any] = {}
        mode = metadata.get("thinking_mode")
        if mode is not None:
            variables["enable_thinking"] = mode == "thinking"
        effort = metadata.get("reasoning_effort")
        if effort is not None:
            # Templates that know "xhigh" have no "high" and no "max" (Qwen); the others take OpenAI's words.
            speaks_xhigh = "xhigh" in template.source
            variables["reasoning_effort"] = "xhigh" if speaks_xhigh and effort in ("high", "max") else effort
        variables.update(metadata.get("chat_template_kwargs") or {})
        return variables

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

    def _check_ids(self, name: str, ids: tuple[object, ...]) -> None:
        size = self.tokenizer.vocab_size
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < size:
                raise ConfigurationError(
                    f"{name} has {token!r}, which is outside this model's vocabulary of {size} tokens.", param=name
                )


def _constraint(response_format: dict[str, Any] | None) -> Constraint | None:
    """OpenAI's ``response_format`` as a constraint; shape errors are found by the protocol layer."""
    kind = (response_format or {}).get("type", "text")
    if kind == "json_object":
        return Constraint(kind="json_object", text="")
    if response_format is not None and kind == "json_schema":
        schema = response_format.get("json_schema", {}).get("schema", {})
        return Constraint(kind="json_schema", text=msgspec.json.encode(schema).decode())
    return None
