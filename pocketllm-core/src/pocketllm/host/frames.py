"""Frames between the host and an engine's child process: a 4-byte length, then one msgpack-encoded Struct.

Commands and events travel on two pipes, so that neither direction can block the other.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from pocketllm.engine_args import EngineArgs
from pocketllm.errors import EngineError
from pocketllm.plugins.discovery import Plugin
from pocketllm.types import Capabilities, Command, EngineStats, GenerationRequest, StepBatch

MAX_FRAME_BYTES = 1 << 30


class Open(msgspec.Struct, frozen=True, tag="open"):
    """First frame to the child: ``args.backend`` opens ``args.model``, both resolved. The child sees the host's plugins
    and imports from the same places."""

    args: EngineArgs
    plugins: list[Plugin]
    sys_path: list[str]


class Generate(msgspec.Struct, frozen=True, tag="generate"):
    """A request that was admitted; its choices have their handles."""

    request: GenerationRequest


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """End the sequence of ``handle`` at the next step. ``reason`` is a ``CancelReason``."""

    handle: int
    reason: str


class Control(msgspec.Struct, frozen=True, tag="control"):
    """A command for the whole engine; its answer is a ``ControlDone`` of the same ``ticket``."""

    ticket: int
    command: Command


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Asked at each heartbeat; a child that hangs does not answer."""


class Close(msgspec.Struct, frozen=True, tag="close"):
    """End every sequence and then the engine, within ``deadline_s`` seconds."""

    deadline_s: float


ToChild = Open | Generate | Cancel | Control | Ping | Close


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """``fraction``, 0.0 to 1.0, of a ``stage`` of the open is done."""

    stage: str
    fraction: float


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """The engine is open."""

    capabilities: Capabilities


class OpenFailed(msgspec.Struct, frozen=True, tag="open_failed"):
    """``kind`` is the name of an error class of :mod:`pocketllm.errors`."""

    kind: str
    message: str
    param: str | None
    traceback: str


class Batch(msgspec.Struct, frozen=True, tag="batch"):
    """What one step of the engine has posted."""

    batch: StepBatch


class Stats(msgspec.Struct, frozen=True, tag="stats"):
    """The engine's counters, sent when they have changed."""

    stats: EngineStats


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """The answer to a ``Ping``."""


class ControlDone(msgspec.Struct, frozen=True, tag="control_done"):
    """The answer to a ``Control``: its value or its error. ``known`` is false for a command that no hook took."""

    ticket: int
    known: bool
    value: Any = None
    error: str | None = None


class Closed(msgspec.Struct, frozen=True, tag="closed"):
    """The last frame: every sequence has had its final event."""


FromChild = Progress | Opened | OpenFailed | Batch | Stats | Pong | ControlDone | Closed

_encoder = msgspec.msgpack.Encoder()
to_child = msgspec.msgpack.Decoder(ToChild)
from_child = msgspec.msgpack.Decoder(FromChild)


def encode(frame: ToChild | FromChild) -> bytes:
    body = _encoder.encode(frame)
    return len(body).to_bytes(4, "little") + body


def write_all(fd: int, data: bytes) -> None:
    """Blocking write of everything; BrokenPipeError when the other side is gone."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class FrameReader:
    """Cuts a byte stream into frame bodies, any chunking."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._buffer += data
        bodies: list[bytes] = []
        start = 0
        while len(self._buffer) - start >= 4:
            length = int.from_bytes(self._buffer[start : start + 4], "little")
            if length > MAX_FRAME_BYTES:
                raise EngineError(f"A frame of {length} bytes is over the limit of {MAX_FRAME_BYTES}.")
            if len(self._buffer) - start - 4 < length:
                break
            bodies.append(bytes(self._buffer[start + 4 : start + 4 + length]))
            start += 4 + length
        del self._buffer[:start]
        return bodies
