"""Bodies of ``/tokenize``, ``/detokenize`` and ``/apply-template``, under the names llama-server gave them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from pocketllm_server.wire.completions_request import Message, TokenId


class PromptFields(msgspec.Struct, kw_only=True):
    """The fields of a chat request that decide its prompt, beside the messages. Null is absent."""

    model: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    thinking_mode: str | None = None
    reasoning_effort: str | None = None
    reasoning: str | bool | dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    drop_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TemplateBody(PromptFields, kw_only=True):
    """``POST /apply-template``."""

    messages: Annotated[list[Message], Meta(min_length=1)]


class TokenizeBody(PromptFields, kw_only=True):
    """``POST /tokenize``: text in ``content``, or a conversation in ``messages``, whose template is applied first."""

    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    content: str | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """``POST /detokenize``."""

    tokens: list[TokenId]
    model: str | None = None
    skip_special: bool | None = None


class TokenPiece(msgspec.Struct):
    """A token and its text, or its bytes where they are not text alone."""

    id: int
    piece: str | list[int]


class TokenizeAnswer(msgspec.Struct):
    """Token ids, with their pieces where those were asked for."""

    tokens: list[int | TokenPiece]
    count: int
    max_model_len: int


class DetokenizeAnswer(msgspec.Struct):
    """The text of token ids."""

    content: str


class TemplateAnswer(msgspec.Struct):
    """A conversation as the model reads it."""

    prompt: str
