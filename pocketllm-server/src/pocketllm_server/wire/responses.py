"""Response bodies of the two generating endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from pocketllm.types import ChoiceResult, GenerationResult, LogprobEntry, Usage


class ChatMessage(msgspec.Struct, kw_only=True, omit_defaults=True):
    role: str
    content: str | None
    reasoning_content: str | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()


class ChatChoice(msgspec.Struct, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: dict[str, Any] | None
    finish_reason: str


class ChatCompletion(msgspec.Struct, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: dict[str, Any]


class CompletionChoice(msgspec.Struct, kw_only=True):
    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: str


class Completion(msgspec.Struct, kw_only=True):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: dict[str, Any]


def chat_choice(index: int, choice: ChoiceResult) -> ChatChoice:
    # A message that is only tool calls has no text, which OpenAI spells as null.
    content = None if choice.tool_calls and not choice.text else choice.text
    return ChatChoice(
        index=index,
        message=ChatMessage(
            role="assistant",
            content=content,
            reasoning_content=choice.reasoning_content,
            tool_calls=choice.tool_calls,
        ),
        logprobs=chat_logprobs(choice.logprobs) if choice.logprobs is not None else None,
        finish_reason=str(choice.finish_reason),
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


def completion_logprobs(entries: Sequence[LogprobEntry], text_offset: int = 0) -> dict[str, Any]:
    """The guide's ``content`` array and OpenAI's four parallel ones.

    ``text_offset`` is the length of the text before the first entry. A token that is a piece of a character has no text
    of its own length, so offsets are exact only where every token is whole characters.
    """
    offsets = []
    for entry in entries:
        offsets.append(text_offset)
        text_offset += len(entry.token)
    return {
        "tokens": [entry.token for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [{item.token: item.logprob for item in entry.top_logprobs} for entry in entries],
        "text_offset": offsets,
        "content": [entry.as_dict() for entry in entries],
    }


def total_usage(results: Sequence[GenerationResult]) -> dict[str, Any]:
    """Usage of all prompts of a request together."""
    return sum_usage([result.usage for result in results]).as_dict()


def sum_usage(parts: Sequence[Usage]) -> Usage:
    return Usage(
        prompt_tokens=sum(part.prompt_tokens for part in parts),
        completion_tokens=sum(part.completion_tokens for part in parts),
        cached_tokens=sum(part.cached_tokens for part in parts),
    )
