"""Prompt formats that a checkpoint defines by a program of its own instead of a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pocketllm.text.chat_formats.deepseek_v4 import DeepSeekV4Format


class ChatFormat(Protocol):
    """Stands in for a chat template. May be used from any thread."""

    @property
    def name(self) -> str: ...

    def recognises(self, model_type: str) -> bool:
        """Whether checkpoints of this family without a template are prompted so."""

    def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking_mode: str = "chat",
        reasoning_effort: str | None = None,
        drop_thinking: bool = True,
        response_format: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt text; control tokens are written out, the begin token included."""


def find_chat_format(model_type: str, checkpoint_name: str = "") -> ChatFormat | None:
    """The format for a checkpoint without a chat template, or None.

    Args:
        model_type: Hugging Face's name of the family.
        checkpoint_name: its file or folder name, which tells revisions of one family apart.
    """
    chat_format = DeepSeekV4Format(effort_revision="0731" if "0731" in checkpoint_name else "original")
    return chat_format if chat_format.recognises(model_type) else None


__all__ = ["ChatFormat", "DeepSeekV4Format", "find_chat_format"]
