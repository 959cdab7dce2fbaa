"""The answer of ``POST /v1/messages``: one message that grows, and the events that tell a reader how."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from pocketllm.types import FinishReason, TokenEvent, Usage
from pocketllm_server.answers.generation import Generation
from pocketllm_server.answers.growing import Event, GrowingReply
from pocketllm_server.answers.tool_calls import CallNumbers, CallPiece
from pocketllm_server.config.settings import ServerSettings
from pocketllm_server.wire.messages_answer import AnthropicAnswer, usage_object

_STOP_REASONS = {
    FinishReason.STOP.value: "end_turn",
    FinishReason.LENGTH.value: "max_tokens",
    FinishReason.TOOL_CALLS.value: "tool_use",
}
PING: Event = {"type": "ping"}


class MessagesReply(GrowingReply):
    """``message`` grows with the events of one choice.

    One block is open at a time; the next one closes it.
    """

    id_prefix = "msg"

    def __init__(self, generation: Generation, fields: Mapping[str, Any], settings: ServerSettings) -> None:
        super().__init__(generation, fields, settings)
        self.message = AnthropicAnswer(id=generation.response_id, model=generation.model.name, content=[], usage={})
        self._call_numbers = CallNumbers()
        self._block_of_call: dict[int, int] = {}
        self._arguments: dict[int, str] = {}  # by block
        self._open: int | None = None
        self._ended = False

    @property
    def answer(self) -> AnthropicAnswer:
        return self.message

    def opened(self) -> list[Event]:
        self.message.usage = usage_object(Usage(prompt_tokens=self._generation.streams[0].num_prompt_tokens))
        return [{"type": "message_start", "message": msgspec.structs.replace(self.message, content=[])}, PING]

    def grown(self, event: TokenEvent) -> list[Event]:
        events: list[Event] = []
        if event.reasoning_content:
            block = self._block("thinking", {"type": "thinking", "thinking": "", "signature": ""}, events)
            block["thinking"] += event.reasoning_content
            events.append(self._delta({"type": "thinking_delta", "thinking": event.reasoning_content}))
        if event.text:
            block = self._block("text", {"type": "text", "text": ""}, events)
            block["text"] += event.text
            events.append(self._delta({"type": "text_delta", "text": event.text}))
        if "tool_calls" in event.metadata:
            for piece in self._call_numbers.pieces(event.metadata["tool_calls"]):
                self._add_call(piece, events)
        if event.finish_reason is not None:
            self._finish(event, events)
        return events

    def failed(self, error: Mapping[str, object]) -> list[Event]:
        if self._ended:
            return []
        self._ended = True
        kind = "overloaded_error" if error["code"] == "backend_unavailable" else "api_error"
        return [{"type": "error", "error": {"type": kind, "message": error["message"]}}]

    def _add_call(self, piece: CallPiece, events: list[Event]) -> None:
        if piece.number not in self._block_of_call:
            call_id = piece.id or f"toolu_{uuid.uuid4().hex}"
            self._start({"type": "tool_use", "id": call_id, "name": piece.name, "input": {}}, events)
            self._block_of_call[piece.number] = len(self.message.content) - 1
            self._arguments[len(self.message.content) - 1] = ""
        index = self._block_of_call[piece.number]
        if piece.arguments:
            self._arguments[index] += piece.arguments
            delta = {"type": "input_json_delta", "partial_json": piece.arguments}
            events.append({"type": "content_block_delta", "index": index, "delta": delta})

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


def _input(arguments: str) -> dict[str, Any]:
    """The arguments of a call as an object; what the budget cut short goes out as the text it is."""
    if not arguments.strip():
        return {}
    try:
        value = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        value = None
    return value if isinstance(value, dict) else {"unparsed_arguments": arguments}
