"""From OpenAI-shaped request bodies, or the arguments of ``LLM.chat``, to :class:`pocketllm.GenerationRequest`.

The one builder for the Python API and the server. It takes plain mappings, mutates none of them, and imports no
runtime. Types and unknown fields are the wire layer's business; what is checked here is meaning.
"""

from __future__ import annotations

from pocketllm.protocol.body_fields import MAX_SALT_CHARS, MAX_TIMEOUT_S
from pocketllm.protocol.chat import chat_call, chat_request
from pocketllm.protocol.completions import Prompt, completion_request, prompt_requests, split_prompts
from pocketllm.protocol.conversation import flatten_content, normalize_messages
from pocketllm.protocol.tools import normalize_tools

__all__ = [
    "MAX_SALT_CHARS", "MAX_TIMEOUT_S", "Prompt", "chat_call", "chat_request", "completion_request",
    "flatten_content", "normalize_messages", "normalize_tools", "prompt_requests", "split_prompts",
]  # fmt: skip
