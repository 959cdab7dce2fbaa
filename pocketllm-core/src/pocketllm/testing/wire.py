"""What the kit and the process that holds the engine say to each other: JSON, one message to a line."""

from __future__ import annotations

import msgspec

from pocketllm.testing.rules import Violation
from pocketllm.testing.settings import KitSettings
from pocketllm.types import Capabilities


class Open(msgspec.Struct, frozen=True, tag="open"):
    """Open the engine that the settings name."""

    settings: KitSettings


class Run(msgspec.Struct, frozen=True, tag="run"):
    """Run one case, by its id."""

    case: str


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """The engine is open, and this is what it declares."""

    capabilities: Capabilities


class Outcome(msgspec.Struct, frozen=True, tag="outcome"):
    """Violations of one case, or why the engine could not be opened."""

    violations: list[Violation]
    traceback: str = ""


Asked = Open | Run
Answer = Opened | Outcome

_encoder = msgspec.json.Encoder()
asked = msgspec.json.Decoder(Asked)
answer = msgspec.json.Decoder(Answer)


def encode(message: Asked | Answer) -> bytes:
    return _encoder.encode(message) + b"\n"
