"""What the kit is told about the engine under test."""

from __future__ import annotations

from typing import Any

import msgspec

from pocketllm.errors import ConfigurationError

PLACEMENTS = ("thread", "child")
MAX_MODEL_LEN = 1024
MAX_BATCH_SIZE = 4


class KitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Plain data, so that it travels to the process that holds the engine.

    ``backend`` is the backend's name; ``target`` is "module:attribute" of an object with its hooks when it is not
    installed. ``engine_args`` are further fields of EngineArgs.
    """

    backend: str
    model: str
    target: str | None = None
    placement: str = "thread"
    backend_options: dict[str, Any] = {}
    engine_args: dict[str, Any] = {}
    deadline_s: float = 60.0
    """For one case. Opening the engine may take ten times as long."""

    @property
    def stream_timeout_s(self) -> float:
        """How long one stream may take before it counts as one that never ends."""
        return self.deadline_s / 4


def parse_pairs(option: str, pairs: list[str]) -> dict[str, Any]:
    """``KEY=VALUE`` texts as a mapping; a value that is JSON is read as such.

    Raises:
        ConfigurationError: there is no "=".
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator or not key:
            raise ConfigurationError(f"{option} {pair!r} is not KEY=VALUE.", param=option)
        try:
            values[key] = msgspec.json.decode(text.encode())
        except msgspec.DecodeError:
            values[key] = text
    return values
