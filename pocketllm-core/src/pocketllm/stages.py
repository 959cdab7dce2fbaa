"""What an extension may put between an engine and its readers, one object for each choice of a request.

Stages run while core drains events, never on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class TokenStage(Protocol):
    """Sees each token id of one choice after the engine produced it; returning True ends the choice."""

    def feed(self, token_id: int) -> bool: ...


class TextStage(Protocol):
    """May alter the answer text of one choice. ``feed`` gets text that is certain and not empty, and returns what is
    passed on, now or later; ``finish`` returns what was held back."""

    def feed(self, text: str) -> str: ...

    def finish(self) -> str: ...


TokenStageFactory = Callable[[int], TokenStage]
"""Called with the choice index, once for each choice."""
TextStageFactory = Callable[[int], TextStage]
