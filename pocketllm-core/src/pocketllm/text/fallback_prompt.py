"""The prompt for a checkpoint with neither a chat template nor a registered format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pocketllm.text.template_values import template_messages


def render_fallback_prompt(messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
    """One ``role: content`` line per message, joined by newlines; ``assistant:`` last when an answer is wanted.

    Deterministic and lossy: tool calls and other fields are left out. Content is normalised as for a template.

    Raises:
        ConfigurationError, UnsupportedFeatureError: as :func:`template_messages`.
    """
    lines = [f"{message['role']}: {message['content']}" for message in template_messages(messages)]
    if add_generation_prompt:
        lines.append("assistant:")
    return "\n".join(lines)
