"""The answer of ``POST /v1/responses``: one response object that grows, and the events that tell a reader how."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from pocketllm.types import FinishReason, TokenEvent
from pocketllm_server.answers.generation import Generation
from pocketllm_server.answers.growing import Event, GrowingReply
from pocketllm_server.answers.tool_calls import CallNumbers, CallPiece
from pocketllm_server.config.settings import ServerSettings
from pocketllm_server.wire.responses_answer import ResponseObject, new_response, usage_object


class ResponsesReply(GrowingReply):
    """``response`` grows with the events of one choice.

    Items open when their first piece comes. Reasoning ends when something else begins, a call when the next one begins,
    and the message, which text may join until the end, with the response.
    """

    id_prefix = "resp"

    def __init__(self, generation: Generation, fields: Mapping[str, Any], settings: ServerSettings) -> None:
        super().__init__(generation, fields, settings)
        self.response = _new_response(generation, fields)
        self._sequence_number = 0
        self._call_numbers = CallNumbers()
        self._reasoning: dict[str, Any] | None = None
        self._message: dict[str, Any] | None = None
        self._calls: dict[int, dict[str, Any]] = {}
        self._open: list[dict[str, Any]] = []

    @property
    def answer(self) -> ResponseObject:
        return self.response

    def opened(self) -> list[Event]:
        return [self._event("response.created", response=self._snapshot()),
                self._event("response.in_progress", response=self._snapshot())]  # fmt: skip

    def grown(self, event: TokenEvent) -> list[Event]:
        events: list[Event] = []
        if event.reasoning_content:
            self._add_reasoning(event.reasoning_content, events)
        logprobs = [entry.as_dict() for entry in event.logprobs]
        if event.text or logprobs:
            self._add_text(event.text, logprobs, events)
        if "tool_calls" in event.metadata:
            for piece in self._call_numbers.pieces(event.metadata["tool_calls"]):
                self._add_call(piece, events)
        if event.finish_reason is not None:
            self._finish(event, events)
        return events

    def failed(self, error: Mapping[str, object]) -> list[Event]:
        events: list[Event] = []
        if self.response.status == "in_progress":
            self._close_all("incomplete", events)
            self.response.error = {"code": error["code"] or "server_error", "message": error["message"]}
            self.response.status = "cancelled" if error["code"] == "request_cancelled" else "failed"
            events.append(self._event("response.failed", response=self._snapshot()))
        return events

    # -- pieces ---------------------------------------------------------------------------------------------------

    def _add_reasoning(self, text: str, events: list[Event]) -> None:
        item = self._reasoning
        if item is None or item not in self._open:
            item = self._reasoning = self._open_item({"type": "reasoning", "summary": [], "content": []}, "rs", events)
            item["content"].append({"type": "reasoning_text", "text": ""})
            events.append(self._part("response.content_part.added", item, part=dict(item["content"][0])))
        item["content"][0]["text"] += text
        events.append(self._part("response.reasoning_text.delta", item, delta=text))

    def _add_text(self, text: str, logprobs: list[dict[str, Any]], events: list[Event]) -> None:
        item = self._message or self._open_message(events)
        part = item["content"][0]
        part["text"] += text
        part["logprobs"] += logprobs
        events.append(self._part("response.output_text.delta", item, delta=text, logprobs=logprobs))

    def _open_message(self, events: list[Event]) -> dict[str, Any]:
        self._close_reasoning(events)
        item = self._open_item({"type": "message", "role": "assistant", "content": []}, "msg", events)
        item["content"].append({"type": "output_text", "text": "", "annotations": [], "logprobs": []})
        events.append(self._part("response.content_part.added", item, part=_copy(item["content"][0])))
        self._message = item
        return item

    def _add_call(self, piece: CallPiece, events: list[Event]) -> None:
        item = self._calls.get(piece.number)
        if item is None:
            self._close_reasoning(events)
            for other in self._calls.values():
                self._close(other, "completed", events)
            call = {
                "type": "function_call",
                "call_id": piece.id or f"call_{uuid.uuid4().hex}",
                "name": piece.name,
                "arguments": "",
            }
            item = self._calls[piece.number] = self._open_item(call, "fc", events)
        if piece.arguments:
            item["arguments"] += piece.arguments
            events.append(self._at("response.function_call_arguments.delta", item, delta=piece.arguments))

    # -- ends -----------------------------------------------------------------------------------------------------

    def _finish(self, event: TokenEvent, events: list[Event]) -> None:
        reason = event.finish_reason
        whole = reason != FinishReason.LENGTH
        if not self.response.output:
            self._open_message(events)  # an empty answer is an empty message
        self._close_all("completed" if whole else "incomplete", events)
        if event.usage is not None:
            self.response.usage = usage_object(event.usage)
        self.response.status = "completed" if whole else "incomplete"
        if whole:
            self.response.completed_at = int(time.time())
        else:
            self.response.incomplete_details = {"reason": "max_output_tokens"}
        events.append(self._event(f"response.{self.response.status}", response=self._snapshot()))

    def _close_all(self, status: str, events: list[Event]) -> None:
        # Only the item that was being written when the budget ran out is incomplete.
        for item in list(self._open):
            last = item is self.response.output[-1]
            self._close(item, status if last else "completed", events)

    def _close_reasoning(self, events: list[Event]) -> None:
        if self._reasoning is not None:
            self._close(self._reasoning, "completed", events)

    def _close(self, item: dict[str, Any], status: str, events: list[Event]) -> None:
        if item not in self._open:
            return
        self._open.remove(item)
        item["status"] = status
        if item["type"] == "function_call":
            named = {"arguments": item["arguments"], "name": item["name"]}
            events.append(self._at("response.function_call_arguments.done", item, **named))
        else:
            part = item["content"][0]
            said: dict[str, Any] = {"text": part["text"]}
            kind = "response.reasoning_text.done"
            if item["type"] == "message":
                kind = "response.output_text.done"
                said["logprobs"] = part["logprobs"]
            events.append(self._part(kind, item, **said))
            events.append(self._part("response.content_part.done", item, part=_copy(part)))
        index = self.response.output.index(item)
        events.append(self._event("response.output_item.done", output_index=index, item=_copy(item)))

    # -- shapes ---------------------------------------------------------------------------------------------------

    def _open_item(self, item: dict[str, Any], prefix: str, events: list[Event]) -> dict[str, Any]:
        item = {"id": f"{prefix}_{uuid.uuid4().hex}", **item, "status": "in_progress"}
        self.response.output.append(item)
        self._open.append(item)
        index = len(self.response.output) - 1
        events.append(self._event("response.output_item.added", output_index=index, item=_copy(item)))
        return item

    def _event(self, kind: str, **values: Any) -> Event:
        event = {"type": kind, "sequence_number": self._sequence_number, **values}
        self._sequence_number += 1
        return event

    def _at(self, kind: str, item: dict[str, Any], **values: Any) -> Event:
        index = next(i for i, each in enumerate(self.response.output) if each is item)
        return self._event(kind, item_id=item["id"], output_index=index, **values)

    def _part(self, kind: str, item: dict[str, Any], **values: Any) -> Event:
        return self._at(kind, item, content_index=0, **values)

    def _snapshot(self) -> ResponseObject:
        return msgspec.structs.replace(self.response, output=[_copy(item) for item in self.response.output])


def _new_response(generation: Generation, fields: Mapping[str, Any]) -> ResponseObject:
    params = generation.requests[0].sampling_params
    capabilities = generation.model.client.capabilities
    in_force = capabilities.top_p if not capabilities.per_request_sampling else 1.0
    return new_response(
        fields,
        generation.response_id,
        generation.created,
        generation.model.name,
        temperature=float(params.temperature),  # a default may be of a class of its own
        top_p=in_force if params.top_p is None else params.top_p,
    )


def _copy(value: Any) -> Any:
    """Events keep what was true when they were made."""
    if isinstance(value, dict):
        return {key: _copy(each) for key, each in value.items()}
    return [_copy(each) for each in value] if isinstance(value, list) else value
