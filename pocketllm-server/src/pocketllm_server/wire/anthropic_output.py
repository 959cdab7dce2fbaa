"""The answer of ``POST /v1/messages``: one message that grows, its stream events, and Anthropic's error shape."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from pocketllm.types import FinishReason, TokenEvent, Usage

Event = dict[str, Any]

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_STOP_REASONS = {
    FinishReason.STOP.value: "end_turn",
    FinishReason.LENGTH.value: "max_tokens",
    FinishReason.TOOL_CALLS.value: "tool_use",
}


class AnthropicAnswer(msgspec.Struct, kw_only=True):
    """Anthropic's message object."""

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: dict[str, int]


class AnthropicError(msgspec.Struct):
    """Anthropic's error body."""

    error: dict[str, str]
    type: str = "error"


def error_body(status: int, message: str) -> AnthropicError:
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if 400 <= status < 499 else "api_error")
    return AnthropicError({"type": kind, "message": message})


def usage_object(usage: Usage) -> dict[str, int]:
    """Anthropic counts tokens read from the cache apart from the other input tokens."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


class MessageLog:
    """Turns the events of one choice into the growing ``message`` and the stream events of every change.

    One block is open at a time; the next one closes it.
    """

    def __init__(self, message_id: str, model: str) -> None:
        self.message = AnthropicAnswer(id=message_id, model=model, content=[], usage={})
        self._arguments: dict[int, str] = {}
        self._call_indices: dict[int, int] = {}
        self._open: int | None = None
        self._ended = False

    @property
    def answer(self) -> AnthropicAnswer:
        return self.message

    def opening(self, num_prompt_tokens: int) -> list[Event]:
        self.message.usage = usage_object(Usage(prompt_tokens=num_prompt_tokens))
        return [{"type": "message_start", "message": msgspec.structs.replace(self.message, content=[])}, PING]

    def take(self, event: TokenEvent) -> list[Event]:
        """The events for what one choice gained; with its finish reason, those that end the message."""
        events: list[Event] = []
        if event.reasoning_content:
            block = self._block("thinking", {"type": "thinking", "thinking": "", "signature": ""}, events)
            block["thinking"] += event.reasoning_content
            events.append(self._delta({"type": "thinking_delta", "thinking": event.reasoning_content}))
        if event.text:
            block = self._block("text", {"type": "text", "text": ""}, events)
            block["text"] += event.text
            events.append(self._delta({"type": "text_delta", "text": event.text}))
        for call in event.metadata.get("tool_calls", ()):
            self._add_call(call, events)
        if event.finish_reason is not None:
            self._finish(event, events)
        return events

    def fail(self, error: Mapping[str, object]) -> list[Event]:
        """The event that ends a message which cannot go on; ``error`` has OpenAI's keys."""
        if self._ended:
            return []
        self._ended = True
        kind = "overloaded_error" if error["code"] == "backend_unavailable" else "api_error"
        return [{"type": "error", "error": {"type": kind, "message": error["message"]}}]

    def _add_call(self, delta: Mapping[str, Any], events: list[Event]) -> None:
        """``delta`` is a piece of a call, or a whole one without an index."""
        number = delta.get("index", len(self._call_indices))
        function = delta.get("function", {})
        if number not in self._call_indices:
            call_id = delta.get("id") or f"toolu_{uuid.uuid4().hex}"
            self._start({"type": "tool_use", "id": call_id, "name": function.get("name") or "", "input": {}}, events)
            self._call_indices[number] = len(self.message.content) - 1
            self._arguments[len(self.message.content) - 1] = ""
        index = self._call_indices[number]
        arguments = function.get("arguments")
        if arguments:
            self._arguments[index] += arguments
            events.append(
                {
                    "type": "content_block_delta",
                    "index": index,
                    "delta": {"type": "input_json_delta", "partial_json": arguments},
                }
            )

    def _finish(self, event: TokenEvent, events: list[Event]) -> None:
        self._stop(events)
        for index, text in self._arguments.items():
            self.message.content[index]["input"] = _input(text)
        message = self.message
        message.stop_reason = _STOP_REASONS.get(str(event.finish_reason), "end_turn")
        message.stop_sequence = event.metadata.get("stop_sequence")
        if message.stop_sequence is not None:
            message.stop_reason = "stop_sequence"
        if event.usage is not None:
            message.usage = usage_object(event.usage)
        delta = {"stop_reason": message.stop_reason, "stop_sequence": message.stop_sequence}
        events.append({"type": "message_delta", "delta": delta, "usage": message.usage})
        events.append({"type": "message_stop"})
        self._ended = True

    def _block(self, kind: str, empty: dict[str, Any], events: list[Event]) -> dict[str, Any]:
        if self._open is None or self.message.content[self._open]["type"] != kind:
            self._start(empty, events)
        return self.message.content[-1]

    def _start(self, block: dict[str, Any], events: list[Event]) -> None:
        self._stop(events)
        self.message.content.append(block)
        self._open = len(self.message.content) - 1
        events.append({"type": "content_block_start", "index": self._open, "content_block": dict(block)})

    def _stop(self, events: list[Event]) -> None:
        if self._open is not None:
            events.append({"type": "content_block_stop", "index": self._open})
            self._open = None

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": self._open, "delta": delta}


PING: Event = {"type": "ping"}


def _input(arguments: str) -> dict[str, Any]:
    """The arguments of a call as an object; what the budget cut short goes out as the text it is."""
    if not arguments.strip():
        return {}
    try:
        value = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        value = None
    return value if isinstance(value, dict) else {"unparsed_arguments": arguments}
