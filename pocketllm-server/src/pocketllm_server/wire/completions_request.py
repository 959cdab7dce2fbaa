"""Types and bounds of every request field that is acted on or refused by value.

Policy (what is refused where) is :mod:`pocketllm.fields`; a row there and a field here belong together.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pocketllm.protocol import MAX_SALT_CHARS, MAX_TIMEOUT_S
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
    """What a stream also carries."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class ResponseFormat(msgspec.Struct):
    """The form of the answer: free, a JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """One restriction of the answer; a key this server does not know would be one that it does not keep."""

    json: dict[str, Any] | bool | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class Message(msgspec.Struct):
    """One message of a conversation; content blocks and tool calls are normalised by :mod:`pocketllm.protocol`."""

    role: Annotated[str, Meta(min_length=1, max_length=64)]
    content: str | list[Any] | dict[str, Any] | int | float | bool | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    function_call: dict[str, Any] | None = None
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
    top_k: Annotated[int, Meta(ge=-1, le=MAX_INT64)] | None = None
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
    timeout: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_S)] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    return_token_ids: bool | None = None
    priority: Annotated[int, Meta(ge=-(2**31), lt=2**31)] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=MAX_SALT_CHARS)] | None = None
    request_id: RequestId | None = None
    user: Any = None
    store: Any = None
    metadata: Any = None
    service_tier: Any = None


class ChatBody(SharedBody, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    logprobs: bool | None = None
    top_logprobs: Rank | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    tool_call_streaming: Literal["certain", "eager"] | None = None
    thinking_mode: str | None = None
    reasoning_effort: str | None = None
    reasoning: str | bool | dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    reasoning_field: Literal["reasoning_content", "both"] | None = None
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
    prediction: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None


class CompletionBody(SharedBody, kw_only=True):
    """``POST /v1/completions``. ``prompt``: text, token ids, or a list of one of the two kinds."""

    prompt: str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)]
    # 0 goes with echo, which then scores the prompt.
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: Rank | None = None
    top_logprobs: Any = None
    best_of: Positive | None = None
    suffix: str | None = None
    echo: bool | None = None
