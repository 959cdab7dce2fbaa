"""The bodies that chat and completions answer with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from pocketllm.types import ChoiceResult, GenerationResult, LogprobEntry, Usage
from pocketllm_server.wire.completions_logprobs import completion_logprobs


class ChatMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The assistant's answer."""

    role: str
    content: str | None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()


class ChatChoice(msgspec.Struct, kw_only=True):
    """One of the answers of a chat."""

    index: int
    message: ChatMessage
    logprobs: dict[str, Any] | None
    finish_reason: str
    token_ids: Sequence[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The whole answer of a chat that was not streamed."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: dict[str, Any]
    prompt_token_ids: Sequence[int] | UnsetType = UNSET


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One of the answers of a completion."""

    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: str
    token_ids: Sequence[int] | UnsetType = UNSET
    prompt_token_ids: Sequence[int] | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    """The whole answer of a completion that was not streamed."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: dict[str, Any]


def chat_choice(
    index: int, choice: ChoiceResult, *, both_spellings: bool = False, with_token_ids: bool = False
) -> ChatChoice:
    """``both_spellings`` says reasoning under its other name too."""
    # A message that is only tool calls has no text, which OpenAI spells as null.
    content = None if choice.tool_calls and not choice.text else choice.text
    return ChatChoice(
        index=index,
        message=ChatMessage(
            role="assistant",
            content=content,
            reasoning_content=choice.reasoning_content,
            reasoning=choice.reasoning_content if both_spellings else None,
            tool_calls=choice.tool_calls,
        ),
        logprobs=chat_logprobs(choice.logprobs) if choice.logprobs is not None else None,
        finish_reason=str(choice.finish_reason),
        token_ids=choice.token_ids if with_token_ids else UNSET,
    )


def completion_choice(index: int, choice: ChoiceResult) -> CompletionChoice:
    return CompletionChoice(
        index=index,
        text=choice.text,
        logprobs=completion_logprobs(choice.logprobs) if choice.logprobs is not None else None,
        finish_reason=str(choice.finish_reason),
    )


def chat_logprobs(entries: Sequence[LogprobEntry]) -> dict[str, Any]:
    return {"content": [entry.as_dict() for entry in entries]}


def total_usage(results: Sequence[GenerationResult]) -> dict[str, Any]:
    """Usage of all prompts of a request together."""
    return sum_usage([result.usage for result in results]).as_dict()


def sum_usage(parts: Sequence[Usage]) -> Usage:
    return Usage(
        prompt_tokens=sum(part.prompt_tokens for part in parts),
        completion_tokens=sum(part.completion_tokens for part in parts),
        cached_tokens=sum(part.cached_tokens for part in parts),
        reasoning_tokens=sum(part.reasoning_tokens for part in parts),
    )
