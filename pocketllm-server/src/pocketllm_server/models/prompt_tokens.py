"""How many tokens a prompt has, for endpoints that count and show instead of generating."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pocketllm.types import Capabilities, GenerationRequest

if TYPE_CHECKING:
    from pocketllm.prompt.builder import PromptBuilder

_NO_LIMIT = 2**62


def prompt_tokens(prompts: PromptBuilder, request: GenerationRequest, capabilities: Capabilities) -> tuple[int, ...]:
    """The token ids a request would be prefilled with, whether or not they fit the context."""
    unlimited = msgspec.structs.replace(capabilities, max_model_len=_NO_LIMIT)
    return prompts.prepare(request, unlimited).request.prompt_tokens
