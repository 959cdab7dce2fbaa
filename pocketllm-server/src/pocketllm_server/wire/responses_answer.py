"""The response object of ``POST /v1/responses``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pocketllm.types import Usage


class ResponseObject(msgspec.Struct, kw_only=True):
    """OpenAI's response object. ``store`` is false: nothing is kept."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str = "in_progress"
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, Any] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    model: str
    output: list[dict[str, Any]] = []
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    reasoning: dict[str, Any]
    store: bool = False
    background: bool = False
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any] = "auto"
    tools: list[dict[str, Any]] = []
    top_logprobs: int = 0
    top_p: float = 1.0
    truncation: str = "disabled"
    usage: dict[str, Any] | None = None
    user: Any = None
    metadata: dict[str, Any] = {}


def new_response(fields: Mapping[str, Any], response_id: str, created: int, model: str, **used: Any) -> ResponseObject:
    """The object before its first token. ``used``: values in force that the request need not name."""
    return ResponseObject(
        id=response_id,
        created_at=created,
        model=model,
        instructions=fields.get("instructions"),
        max_output_tokens=fields.get("max_output_tokens"),
        output=[],
        parallel_tool_calls=fields.get("parallel_tool_calls", True),
        reasoning={"effort": fields.get("reasoning", {}).get("effort"), "summary": None},
        text={"format": fields.get("text", {}).get("format") or {"type": "text"}},
        tool_choice=fields.get("tool_choice", "auto"),
        tools=fields.get("tools", []),
        top_logprobs=fields.get("top_logprobs", 0),
        user=fields.get("user"),
        metadata=fields.get("metadata", {}),
        **used,
    )


def usage_object(usage: Usage) -> dict[str, Any]:
    """OpenAI's shape for responses. Output tokens include those of the reasoning."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
