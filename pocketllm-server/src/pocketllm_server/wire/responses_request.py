"""``POST /v1/responses``: the request, and how it is said in the words of ``/v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pocketllm.errors import ConfigurationError, UnsupportedFeatureError
from pocketllm.fields import shown, unsupported
from pocketllm_server.wire.completions_request import Count, Positive, Probability, Rank, RequestId
from pocketllm_server.wire.dialect import acted_on, check_tool_options, inert, object_of, refused, text_of

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
INCLUDES = (LOGPROBS, ENCRYPTED)

CHAT_NAMES = {
    "messages": "input",
    "prompt": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "include",
}
"""Chat's name of a field to this endpoint's."""

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ResponsesTextFormat(msgspec.Struct):
    """The form of the answer: free, a JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class ResponsesText(msgspec.Struct):
    """How the answer is written."""

    format: ResponsesTextFormat | None = None
    verbosity: str | None = None


class ResponsesReasoning(msgspec.Struct):
    """How much to reason, and what of it is returned."""

    effort: Effort | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None
    mode: str | None = None


class ResponsesStreamOptions(msgspec.Struct):
    """What a stream also carries."""

    include_obfuscation: bool | None = None


class ResponsesBody(msgspec.Struct, kw_only=True):
    """Null is absent. ``input``: text, or a list of items as earlier responses returned them."""

    input: str | Annotated[list[dict[str, Any]], Meta(min_length=1)]
    model: str | None = None
    instructions: str | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    max_output_tokens: Positive | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Probability | None = None
    top_k: Count | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: ResponsesText | None = None
    reasoning: ResponsesReasoning | None = None
    include: list[str] | None = None
    top_logprobs: Rank | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    request_id: RequestId | None = None
    store: bool | None = None
    previous_response_id: Any = None
    conversation: Any = None
    background: bool | None = None
    background_options: Any = None
    context_management: list[Any] | None = None
    prompt: Any = None
    truncation: str | None = None
    moderation: Any = None
    image: Any = None
    access_programs: Any = None
    max_tool_calls: Any = None
    metadata: dict[str, Any] | None = None
    user: Any = None
    service_tier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None


_STATELESS = "nothing is stored here, so there is nothing to go on from"
_RESEND = 'Send the earlier items in "input"'

ROWS = (
    acted_on("input", "Text, or a list of messages, function calls, their outputs and reasoning items."),
    acted_on("instructions", "Put in front of the conversation as a system message."),
    acted_on("stream", "Server-sent events from response.created to response.completed."),
    acted_on("max_output_tokens", "The generation budget, reasoning included."),
    acted_on("temperature", "0 is greedy; where the engine fixes its sampling, only the value in force."),
    acted_on("top_p", "Nucleus sampling; where the engine fixes its sampling, only the value in force."),
    acted_on("top_k", "Sample among the k likeliest; an extension."),
    acted_on("seed", "Makes sampling repeatable; an extension."),
    acted_on("tools", "Function tools; the hosted kinds are refused."),
    acted_on("tool_choice", "auto, none, required, one function or allowed_tools; chat's rules hold.", "tool_choice"),
    acted_on("parallel_tool_calls", "false: at most one call.", "parallel_tool_calls"),
    acted_on("text", "text.format: text, json_object or json_schema.", "response_format"),
    acted_on("reasoning", "reasoning.effort: how much to reason; none switches it off."),
    acted_on("include", f"{LOGPROBS} adds log probabilities; {ENCRYPTED} is met by items in clear text.", "logprobs"),
    acted_on("top_logprobs", "Alternatives per position, 0 to 20; asks for log probabilities.", "logprobs"),
    acted_on("chat_template_kwargs", "Further variables of the chat template; an extension."),
    acted_on("request_id", "The name under which DELETE /v1/requests/<id> finds the request; an extension."),
    refused("store", "Only false.", "responses are not kept", 'Send "store" as false', (False,)),
    refused("previous_response_id", "Refused: stateless.", _STATELESS, _RESEND),
    refused("conversation", "Refused: stateless.", _STATELESS, _RESEND),
    refused("background", "Only false.", "a response lives as long as its connection", 'Send "stream"', (False,)),
    refused("background_options", "Refused.", "a response lives as long as its connection", "Remove it"),
    refused("context_management", "Only empty.", "the input is used as it is", "Shorten the input yourself", ([],)),
    refused("prompt", "Refused.", "no prompt templates are kept", 'Send the text as "instructions" and "input"'),
    refused("truncation", 'Only "disabled".', "an input that is too long is refused", 'Send "disabled"', ("disabled",)),
    refused("moderation", "Refused.", "neither the input nor the answer is judged", "Remove it"),
    refused("image", "Refused.", "this server takes and produces text alone", "Remove it"),
    refused("access_programs", "Refused.", "there are no such programs here", "Remove it"),
    refused(
        "text.verbosity", 'Only "medium".', "no template has a place for it", "Ask for it in the input", ("medium",)
    ),
    refused(
        "reasoning.summary",
        'Only "auto": reasoning comes whole, as reasoning text.',
        "reasoning is returned whole and never summarised",
        'Send "auto" or leave it out',
        ("auto",),
    ),
    refused(
        "reasoning.generate_summary",
        'Only "auto".',
        "reasoning is returned whole and never summarised",
        'Send "auto" or leave it out',
        ("auto",),
    ),
    refused("reasoning.context", 'Only "auto".', "the template decides what it keeps", 'Send "auto"', ("auto",)),
    refused("reasoning.mode", 'Only "standard".', "there is one mode", 'Send "standard"', ("standard",)),
    inert("stream_options", "Events are never padded."),
    inert("model", "One model is served; its configured name is echoed back."),
    inert("metadata", "The caller's own labels; echoed back."),
    inert("max_tool_calls", "Counts calls of hosted tools, of which there are none."),
    inert("user", "The caller's own label."),
    inert("service_tier", "There is one tier."),
    inert("prompt_cache_key", "Prefixes are shared by content."),
    inert("prompt_cache_options", "Prefixes are shared by content."),
    inert("prompt_cache_retention", "The cache keeps what fits."),
    inert("safety_identifier", "The caller's own label."),
)

_SAME = ("temperature", "top_p", "top_k", "seed", "parallel_tool_calls", "chat_template_kwargs", "request_id", "stream")
_ROLES = ("system", "developer", "user", "assistant")
_TOOL_OPTIONS: dict[str, tuple[Any, ...]] = {
    "defer_loading": (False,),
    "async": (False,),
    "allowed_callers": (["direct"], []),
}


def chat_body(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The chat request that a checked :class:`ResponsesBody` stands for.

    Raises:
        ConfigurationError, UnsupportedFeatureError: ``param`` names the field of this endpoint.
    """
    body: dict[str, Any] = {name: fields[name] for name in _SAME if name in fields}
    body["messages"] = _messages(fields)
    if "max_output_tokens" in fields:
        body["max_tokens"] = fields["max_output_tokens"]
    if fields.get("tools"):
        body["tools"] = [_tool(index, tool) for index, tool in enumerate(fields["tools"])]
    if "tool_choice" in fields:
        body["tool_choice"] = _tool_choice(fields["tool_choice"])
    effort = fields.get("reasoning", {}).get("effort")
    if effort is not None:
        body["reasoning_effort"] = effort
    response_format = fields.get("text", {}).get("format")
    if response_format is not None:
        body["response_format"] = _response_format(response_format)
    for item in fields.get("include", ()):
        if item not in INCLUDES:
            raise unsupported("include", item, "there is no such part to add", f"Send {' or '.join(INCLUDES)}")
    if LOGPROBS in fields.get("include", ()) or fields.get("top_logprobs"):
        body["logprobs"] = True
        body["top_logprobs"] = fields.get("top_logprobs", 0)
    return body


def _messages(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    turns = _Turns()
    if fields.get("instructions"):
        turns.add_message("system", fields["instructions"])
    given = fields["input"]
    if isinstance(given, str):
        turns.add_message("user", given)
        return turns.messages
    for index, item in enumerate(given):
        _add_item(turns, f"input[{index}]", item)
    turns.end_reasoning()
    return turns.messages


def _add_item(turns: _Turns, where: str, item: dict[str, Any]) -> None:
    kind = item.get("type", "message" if "role" in item else None)
    if kind == "message":
        role = item.get("role")
        if role not in _ROLES:
            raise ConfigurationError(
                f'"{where}.role" = {shown(role)} is unknown: use one of {", ".join(_ROLES)}.', param="input"
            )
        turns.add_message(str(role), item.get("content"))
    elif kind == "function_call":
        turns.add_call(
            text_of(item, "call_id", where, "input"),
            text_of(item, "name", where, "input"),
            text_of(item, "arguments", where, "input"),
        )
    elif kind == "function_call_output":
        turns.add_output(text_of(item, "call_id", where, "input"), item.get("output"))
    elif kind == "reasoning":
        turns.add_reasoning(_reasoning_text(where, item))
    elif kind is None:
        raise ConfigurationError(f'"{where}" has neither a type nor a role.', param="input")
    else:
        raise UnsupportedFeatureError(
            f'"{where}.type" = {shown(kind)} is not supported by this server: it reads messages, function calls, their '
            "outputs and reasoning. Remove the item, or send what it stands for as a message.",
            param="input",
        )


def _reasoning_text(where: str, item: Mapping[str, Any]) -> str:
    parts = item.get("content") or item.get("summary") or []
    if not isinstance(parts, list):
        raise ConfigurationError(f'"{where}.content" is not a list of parts.', param="input")
    if not parts and item.get("encrypted_content"):
        raise UnsupportedFeatureError(
            f'"{where}.encrypted_content" was sealed by another server and cannot be read: remove the item.',
            param="input",
        )
    return "\n".join(
        text_of(object_of(part, f"{where}.content[{i}]", "input"), "text", f"{where}.content[{i}]", "input")
        for i, part in enumerate(parts)
    )


class _Turns:
    """Chat messages under construction. What one answer was split into (reasoning, text, calls) is one turn again."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._reasoning: str | None = None
        self._open: dict[str, Any] | None = None  # the assistant's turn that calls may still join

    def add_message(self, role: str, content: Any) -> None:
        if role == "assistant":
            self._open = self._assistant(content)
            return
        self.end_reasoning()
        self._open = None
        last = self.messages[-1] if self.messages else None
        if role in ("system", "developer") and last is not None and last["role"] == "system":
            # Templates know one system message, at the start.
            last["content"] = [*_parts(last["content"]), {"type": "text", "text": ""}, *_parts(content)]
            return
        self.messages.append({"role": "system" if role == "developer" else role, "content": content})

    def add_call(self, call_id: str, name: str, arguments: str) -> None:
        if self._open is None or self._reasoning is not None:
            self._open = self._assistant(None)
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._open.setdefault("tool_calls", []).append(call)

    def add_output(self, call_id: str, output: Any) -> None:
        self.end_reasoning()
        self._open = None
        message = {"role": "tool", "tool_call_id": call_id, "content": output}
        calls = (call for each in self.messages for call in each.get("tool_calls", ()))
        name = next((call["function"]["name"] for call in calls if call["id"] == call_id), None)
        if name is not None:  # some templates print it
            message["name"] = name
        self.messages.append(message)

    def add_reasoning(self, text: str) -> None:
        self.end_reasoning()
        self._open = None
        self._reasoning = text or None

    def end_reasoning(self) -> None:
        """Reasoning that no text and no call followed was an answer all the same, as when the budget ran out."""
        if self._reasoning is not None:
            self._assistant(None)

    def _assistant(self, content: Any) -> dict[str, Any]:
        turn: dict[str, Any] = {"role": "assistant", "content": content}
        if self._reasoning is not None:
            turn["reasoning_content"] = self._reasoning
            self._reasoning = None
        self.messages.append(turn)
        return turn


def _parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [{"type": "text", "text": content or ""}]


def _tool(index: int, tool: dict[str, Any]) -> dict[str, Any]:
    where = f"tools[{index}]"
    if tool.get("type") != "function":
        raise UnsupportedFeatureError(
            f'"{where}.type" = {shown(tool.get("type"))} is not supported by this server: it runs no tools of its own. '
            "Offer functions, and run what the model calls yourself.",
            param="tools",
        )
    text_of(tool, "name", where, "tools")
    check_tool_options(tool, where, _TOOL_OPTIONS)
    function = {key: tool[key] for key in ("name", "description", "parameters", "strict") if tool.get(key) is not None}
    return {"type": "function", "function": function}


def _tool_choice(choice: str | dict[str, Any]) -> str | dict[str, Any]:
    if isinstance(choice, dict) and choice.get("type") not in ("function", "allowed_tools"):
        raise unsupported(
            "tool_choice",
            choice,
            "the choice is auto, none, required, one function or allowed_tools",
            'Send {"type": "function", "name": ...} or a word',
        )
    return choice


def _response_format(given: Mapping[str, Any]) -> dict[str, Any]:
    if given["type"] != "json_schema":
        return {"type": given["type"]}
    named = {key: given[key] for key in ("name", "schema", "strict", "description") if given.get(key) is not None}
    if "schema" not in named:
        raise ConfigurationError('"text.format.schema" is missing: send the schema.', param="text.format")
    return {"type": "json_schema", "json_schema": named}
