"""``POST /v1/messages``: Anthropic's request, and how it is said in the words of ``/v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pocketllm.errors import ConfigurationError, UnsupportedFeatureError
from pocketllm.fields import shown, unsupported
from pocketllm_server.wire.completions_request import Count, Positive, Probability, RequestId
from pocketllm_server.wire.dialect import acted_on, check_tool_options, inert, object_of, refused, text_of

CHAT_NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "thinking_mode": "thinking",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "continue_final_message": "messages",
    "add_generation_prompt": "messages",
    "prompt": "messages",
    "max_completion_tokens": "max_tokens",
}
"""Chat's name of a field to this endpoint's."""


class AnthropicMessage(msgspec.Struct):
    """One turn: text, or a list of content parts."""

    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class AnthropicThinking(msgspec.Struct):
    """Whether the model reasons before it answers."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Positive | None = None
    display: Literal["summarized", "omitted"] | None = None


class AnthropicFormat(msgspec.Struct):
    """A JSON schema that the answer obeys."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class AnthropicOutputConfig(msgspec.Struct):
    """How much to reason, and the form of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: AnthropicFormat | None = None


class AnthropicToolChoice(msgspec.Struct):
    """Whether tools are called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class AnthropicBase(msgspec.Struct, kw_only=True):
    """What ``/v1/messages`` and ``/v1/messages/count_tokens`` share. Null is absent."""

    messages: Annotated[list[AnthropicMessage], Meta(min_length=1)]
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: AnthropicToolChoice | None = None
    thinking: AnthropicThinking | None = None
    output_config: AnthropicOutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_control: Any = None
    mcp_servers: list[Any] | None = None
    context_management: Any = None
    speed: str | None = None
    user_profile_id: Any = None
    workspace_id: Any = None


class CountTokensBody(AnthropicBase, kw_only=True):
    """``POST /v1/messages/count_tokens``."""


class MessagesBody(AnthropicBase, kw_only=True):
    """``POST /v1/messages``."""

    max_tokens: Positive
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Probability | None = None
    top_k: Count | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    request_id: RequestId | None = None
    metadata: Any = None
    service_tier: Any = None
    inference_geo: Any = None
    container: Any = None
    diagnostics: Any = None


_TEXT_ONLY = "this server takes text alone"

SHARED_ROWS = (
    acted_on("messages", "The conversation: text, tool_use, tool_result and thinking blocks."),
    acted_on("system", "Put in front of the conversation as a system message."),
    acted_on("tools", "Tools with an input_schema; the hosted kinds are refused."),
    acted_on("tool_choice", "auto, any, none or one tool.", "tool_choice"),
    acted_on("thinking", "Whether the template opens a reasoning block; its budget is not enforced."),
    acted_on("output_config", "effort: how much to reason. format: a JSON schema for the answer."),
    acted_on("chat_template_kwargs", "Further variables of the chat template; an extension."),
    refused("mcp_servers", "Only empty.", "this server runs no tools", "Run them yourself", ([],)),
    refused("context_management", "Refused.", "the messages are used as they are", "Shorten them yourself"),
    refused("speed", 'Only "standard".', "there is one speed", 'Send "standard"', ("standard",)),
    refused(
        "thinking.display",
        'Only "summarized": thinking is shown, whole.',
        "thinking is always shown",
        'Send "summarized"',
        ("summarized",),
    ),
    inert("model", "One model is served; its configured name is echoed back."),
    inert("cache_control", "Prefixes are shared by content."),
    inert("user_profile_id", "The caller's own label."),
    inert("workspace_id", "The caller's own label."),
)

ROWS = (
    *SHARED_ROWS,
    acted_on("max_tokens", "The generation budget; required."),
    acted_on("stop_sequences", "Matched against the decoded answer."),
    acted_on("stream", "Server-sent events from message_start to message_stop."),
    acted_on("temperature", "0 is greedy; where the engine fixes its sampling, only the value in force."),
    acted_on("top_p", "Nucleus sampling; where the engine fixes its sampling, only the value in force."),
    acted_on("top_k", "Sample among the k likeliest; where the engine fixes it, only the value in force."),
    acted_on("seed", "Makes sampling repeatable; an extension."),
    acted_on("request_id", "The name under which DELETE /v1/requests/<id> finds the request; an extension."),
    refused("container", "Refused.", "no code is run here", "Remove it"),
    refused("diagnostics", "Refused.", "earlier requests are not kept", "Remove it"),
    inert("metadata", "The caller's own labels."),
    inert("service_tier", "There is one tier."),
    inert("inference_geo", "The answer is made on this machine."),
)

_SAME = ("max_tokens", "temperature", "top_p", "top_k", "seed", "request_id", "stream", "chat_template_kwargs")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_TOOL_OPTIONS: dict[str, tuple[Any, ...]] = {
    "defer_loading": (False,),
    "allowed_callers": (["direct"], []),
    "input_examples": ([],),
}
_CONTENT_KEYS = ("role", "content")


def unenforced(fields: Mapping[str, Any]) -> list[str]:
    """Values that are accepted without effect, for the header that names them."""
    return ["thinking.budget_tokens"] if "budget_tokens" in fields.get("thinking", {}) else []


def chat_body(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The chat request that checked fields of :class:`MessagesBody` or :class:`CountTokensBody` stand for.

    Raises:
        ConfigurationError, UnsupportedFeatureError: ``param`` names the field of this endpoint.
    """
    body: dict[str, Any] = {name: fields[name] for name in _SAME if name in fields}
    body["messages"] = _messages(fields)
    if fields.get("stop_sequences"):
        body["stop"] = fields["stop_sequences"]
    if fields.get("tools"):
        body["tools"] = [_tool(index, tool) for index, tool in enumerate(fields["tools"])]
        if any(tool.get("eager_input_streaming") for tool in fields["tools"]):
            body["tool_call_streaming"] = "eager"
    choice = fields.get("tool_choice")
    if choice is not None:
        body["tool_choice"] = _CHOICES.get(choice["type"]) or {
            "type": "function",
            "function": {"name": text_of(choice, "name", "tool_choice", "tool_choice")},
        }
        if choice.get("disable_parallel_tool_use"):
            body["parallel_tool_calls"] = False
    thinking = fields.get("thinking")
    if thinking is not None:
        body["thinking_mode"] = "chat" if thinking["type"] == "disabled" else "thinking"
    config = fields.get("output_config", {})
    if config.get("effort") is not None:
        body["reasoning_effort"] = config["effort"]
        # Effort alone does not ask for a reasoning block here.
        body.setdefault("thinking_mode", "chat")
    if config.get("format") is not None:
        schema = {"name": "answer", "schema": config["format"]["schema"], "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    last = body["messages"][-1]
    if last["role"] == "assistant":
        if last.get("tool_calls"):
            raise ConfigurationError(
                "The last message ends in a tool_use block: send its tool_result in a user message.", param="messages"
            )
        body["continue_final_message"] = True
        body["add_generation_prompt"] = False
    return body


def _messages(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    system = fields.get("system")
    if system:
        parts = [{"type": "text", "text": system}] if isinstance(system, str) else _texts(system, "system")
        messages.append({"role": "system", "content": parts})
    names: dict[str, str] = {}
    for index, message in enumerate(fields["messages"]):
        for turn in _turns(f"messages[{index}]", message, names):
            last = messages[-1] if messages else None
            if last is None or not _joins(last, turn):
                messages.append(turn)
                continue
            # Consecutive turns of one role are one turn, here and in templates that insist on alternation.
            last["content"] = [*last["content"], *turn.pop("content")]
            last.setdefault("tool_calls", []).extend(turn.pop("tool_calls", ()))
            if not last["tool_calls"]:
                del last["tool_calls"]
    return messages


def _joins(last: Mapping[str, Any], turn: Mapping[str, Any]) -> bool:
    return last["role"] == turn["role"] != "tool" and "reasoning_content" not in turn


def _turns(where: str, message: Mapping[str, Any], names: dict[str, str]) -> list[dict[str, Any]]:
    """One message as chat messages: every tool_result is a message of its own."""
    role, content = message["role"], message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    turn: dict[str, Any] = {"role": role, "content": []}
    turns: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        here = f"{where}.content[{index}]"
        kind = block.get("type")
        if kind == "text":
            turn["content"] += _texts([block], here)
        elif kind == "tool_result" and role == "user":
            if turn["content"]:
                turns.append(turn)
                turn = {"role": role, "content": []}
            turns.append(_tool_result(here, block, names))
        elif kind == "tool_use" and role == "assistant":
            call_id, name = text_of(block, "id", here, "messages"), text_of(block, "name", here, "messages")
            names[call_id] = name
            arguments = msgspec.json.encode(object_of(block.get("input", {}), f"{here}.input", "messages")).decode()
            function = {"name": name, "arguments": arguments}
            turn.setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": function})
        elif kind == "thinking" and role == "assistant":
            turn["reasoning_content"] = turn.get("reasoning_content", "") + text_of(block, "thinking", here, "messages")
        else:
            raise UnsupportedFeatureError(
                f'"{here}.type" = {shown(kind)} is not supported by this server in a message of the {role}: '
                f"{_TEXT_ONLY}, with tool_use, tool_result and thinking blocks. Remove the block.",
                param="messages",
            )
    if turn["content"] or len(turn) > len(_CONTENT_KEYS) or not turns:
        turns.append(turn)
    return turns


def _tool_result(where: str, block: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    call_id = text_of(block, "tool_use_id", where, "messages")
    content = block.get("content") or ""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else _texts(content, f"{where}.content")
    if block.get("is_error"):
        # Templates have no place for the flag, so the text has to say it.
        parts = [{"type": "text", "text": "Error:"}, *parts]
    result = {"role": "tool", "tool_call_id": call_id, "content": parts}
    if call_id in names:
        result["name"] = names[call_id]
    return result


def _texts(blocks: Any, where: str) -> list[dict[str, Any]]:
    param = "system" if where == "system" else "messages"
    if not isinstance(blocks, list):
        raise ConfigurationError(f'"{where}" is neither a string nor a list of blocks.', param=param)
    texts = []
    for index, block in enumerate(blocks):
        block = object_of(block, f"{where}[{index}]", param)
        if block.get("type") != "text":
            raise UnsupportedFeatureError(
                f'"{where}[{index}].type" = {shown(block.get("type"))} is not supported by this server: {_TEXT_ONLY}. '
                "Remove the block.",
                param=param,
            )
        texts.append({"type": "text", "text": text_of(block, "text", f"{where}[{index}]", param)})
    return texts


def _tool(index: int, tool: dict[str, Any]) -> dict[str, Any]:
    where = f"tools[{index}]"
    if tool.get("type") not in (None, "custom"):
        raise unsupported("tools", tool["type"], "no tools are run here", "Offer tools that you run yourself")
    check_tool_options(tool, where, _TOOL_OPTIONS)
    function: dict[str, Any] = {"name": text_of(tool, "name", where, "tools")}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    function["parameters"] = object_of(tool.get("input_schema"), f"{where}.input_schema", "tools")
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}
