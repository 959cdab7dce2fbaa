"""How the prompt of a request is made: the typed form of what :mod:`pocketllm.protocol` puts into ``metadata``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import msgspec


class PromptSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Core's keys of ``GenerationRequest.metadata``; keys of others are left alone. Values are shared, not copied.

    A conversation has ``messages`` as :func:`pocketllm.protocol.normalize_messages` gives them; a completion has none.
    """

    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    """The definitions that reach the template."""
    tool_choice: str | dict[str, str] = "auto"
    """One of "auto", "none" and "required", or ``{"name": ...}``."""
    parallel_tool_calls: bool = True
    tool_call_streaming: str = "certain"
    """Under "certain" call deltas are held until the call is certain; under "eager" they leave as they are written."""
    thinking_mode: str | None = None
    """Either "thinking" or "chat"; None: the template's own default."""
    reasoning_effort: str | None = None
    add_generation_prompt: bool = True
    drop_thinking: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    suffix: str = ""
    """What the completion is fitted in front of."""
    echo: bool = False
    """The answer shows the prompt, too."""
    score_only: bool = False
    """No token was asked for; one is generated and not shown."""

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Self:
        """Core's part of a request's metadata; null is absent."""
        return cls(**{name: metadata[name] for name in cls.__struct_fields__ if metadata.get(name) is not None})

    def as_metadata(self) -> dict[str, Any]:
        """The keys that say something: those whose value is not the default."""
        defaults = type(self)()
        return {
            name: getattr(self, name)
            for name in self.__struct_fields__
            if getattr(self, name) != getattr(defaults, name)
        }

    @property
    def forces_calls(self) -> bool:
        """The model is held to a call."""
        return self.tool_choice not in ("auto", "none")
