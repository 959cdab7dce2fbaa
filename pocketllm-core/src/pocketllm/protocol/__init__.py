"""From OpenAI-shaped request bodies, or the arguments of ``LLM.chat``, to :class:`pocketllm.GenerationRequest`.

The one builder for the Python API and the server. It takes plain mappings, mutates none of them, and imports no
runtime. Types and unknown fields are the wire layer's business; what is checked here is meaning.
"""

from __future__ import annotations

from pocketllm.protocol.conversation import flatten_content, normalize_messages, normalize_tools
from pocketllm.protocol.requests import (
    MAX_SALT_CHARS,
    MAX_TIMEOUT_S,
    Prompt,
    chat_call,
    chat_request,
    completion_request,
    prompt_requests,
    split_prompts,
)

__all__ = [
    "MAX_SALT_CHARS", "MAX_TIMEOUT_S", "Prompt", "chat_call", "chat_request", "completion_request",
    "flatten_content", "normalize_messages", "normalize_tools", "prompt_requests", "split_prompts",
]  # fmt: skip
