"""Types and bounds of every request field that is acted on or refused by value.

Policy (what is refused where) is :mod:`pocketllm.fields`; a row there and a field here belong together.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pocketllm.sampling_params import MAX_CHOICES, MAX_TOP_LOGPROBS

MAX_INT64 = 2**63 - 1
MAX_TOKEN_ID = 2**31 - 1

Count = Annotated[int, Meta(ge=0, le=MAX_INT64)]
Positive = Annotated[int, Meta(ge=1, le=MAX_INT64)]
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
# Visible ASCII without "#", which core puts between a request's id and the number of a further prompt.
RequestId = Annotated[str, Meta(max_length=256, pattern=r"^[\x21\x22\x24-\x7e]+\Z")]
# Bounds on temperature and repetition_penalty keep logits finite: far beyond any use, they would only overflow.
Probability = Annotated[float, Meta(gt=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Rank = Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ResponseFormat(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


class Message(msgspec.Struct):
    """One message of a conversation; content blocks and tool calls are normalised by :mod:`pocketllm.protocol`."""

    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | list[str | dict[str, Any]] | dict[str, Any] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class SharedBody(msgspec.Struct, kw_only=True):
    """Fields of both endpoints. Null is absent."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Probability | None = None
    top_k: Count | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=MAX_INT64)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    request_id: RequestId | None = None
    user: Any = None


class ChatBody(SharedBody, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    logprobs: bool | None = None
    top_logprobs: Rank | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    thinking_mode: str | None = None
    reasoning_effort: str | None = None
    reasoning: str | bool | dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    drop_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    functions: list[dict[str, Any]] | None = None
    function_call: str | dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    verbosity: str | None = None
    moderation: Any = None
    store: Any = None
    metadata: Any = None
    service_tier: Any = None
    prediction: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None


class CompletionBody(SharedBody, kw_only=True):
    """``POST /v1/completions``. ``prompt``: text, token ids, or a list of one of the two kinds."""

    prompt: str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)]
    logprobs: Rank | None = None
    top_logprobs: Any = None
    best_of: Positive | None = None
    suffix: str | None = None
    echo: bool | None = None
