"""The capabilities of an engine that obeys every field of a request."""

from __future__ import annotations

from typing import Any

EVERY_REQUEST_FIELD: dict[str, Any] = {
    "supports_logprobs": True,
    "supports_prompt_logprobs": True,
    "supports_streamed_logprobs": True,
    "supports_streamed_usage": True,
    "supports_tool_choice": True,
    "supports_priority": True,
    "supports_suffix": True,
    "supports_min_p": True,
    "supports_penalties": True,
    "supports_logit_bias": True,
    "supports_min_tokens": True,
    "supports_ignore_eos": True,
    "supports_stop_token_ids": True,
    "per_request_sampling": True,
    "per_request_top_k": True,
}
"""Fields of :class:`pocketllm.types.Capabilities` to pass as they are: ``Capabilities(**EVERY_REQUEST_FIELD, ...)``.

What depends on more than the sampler (a batch, structured output, a prefix cache) is not among them.
"""
