"""The seat of speculation: something that proposes tokens before the model computes them."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Protocol

from pocketllm_torch.engine.sequence import Sequence


class Drafter(Protocol):
    """Proposes the tokens that may follow. Right proposals save steps; wrong ones cost rows and change no answer.

    Not for recurrent models, whose state cannot take a token back, and not for the deterministic mode: a row that is
    computed with others does not have the bits of a row alone.
    """

    def propose(self, sequences: Items[Sequence]) -> dict[int, list[int]]:
        """Tokens expected behind the newest one, by handle; a sequence that is left out gets none.

        Called on the engine's thread before each step with the sequences that decode in it. Read them, don't write.
        """
        ...
