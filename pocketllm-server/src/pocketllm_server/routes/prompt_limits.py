"""Bounds on what one request may ask to be rendered and tokenized."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pocketllm.errors import ConfigurationError
from pocketllm.prompt_spec import PromptSpec
from pocketllm.types import GenerationRequest
from pocketllm_server.config.settings import ServerSettings


def check_prompt_limits(settings: ServerSettings, requests: Sequence[GenerationRequest]) -> None:
    """Refuse conversations and prompts that are too large, before they are rendered and tokenized.

    Raises:
        ConfigurationError: ``messages`` or the prompts are above ``max_messages`` or ``max_prompt_chars``.
    """
    num_chars = 0
    for request in requests:
        messages = PromptSpec.of(request.metadata).messages or ()
        if len(messages) > settings.max_messages:
            raise ConfigurationError(
                f'"messages" has {len(messages)} messages, above the {settings.max_messages} that this server takes: '
                "leave out the oldest ones.",
                param="messages",
            )
        # A conversation's prompt is a rendering of its messages, with words of ours.
        num_chars += _num_chars(messages) if messages else len(request.prompt or "") + len(request.prompt_tokens)
    if settings.max_prompt_chars and num_chars > settings.max_prompt_chars:
        has_messages = any(PromptSpec.of(request.metadata).messages for request in requests)
        raise ConfigurationError(
            f"The prompt has {num_chars} characters or token ids, above the {settings.max_prompt_chars} that this "
            "server takes: shorten it.",
            param="messages" if has_messages else "prompt",
        )


def _num_chars(messages: Iterable[Any]) -> int:
    total = 0
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, str):
            total += len(content)
        elif isinstance(content, list):
            total += sum(len(part.get("text") or "") for part in content if isinstance(part, dict))
    return total
