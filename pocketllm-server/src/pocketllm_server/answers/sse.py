"""Frames of server-sent events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy that gathers small writes would undo streaming
]

encode = msgspec.json.Encoder().encode


def error_frame(error: Mapping[str, object]) -> bytes:
    """An error in the middle of a stream, in OpenAI's shape."""
    return b"data: " + encode({"error": error}) + b"\n\n"


def named_frames(events: Sequence[Mapping[str, Any]]) -> bytes:
    """One frame an event, named by the event's type."""
    return b"".join([b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encode(event)) for event in events])
