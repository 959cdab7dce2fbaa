"""Restricting a row of logits to the tokens a matcher allows."""

from __future__ import annotations

import torch

from pocketllm.errors import EngineError
from pocketllm.structured import TokenMatcher

BITS_PER_WORD = 32


def num_mask_words(vocab_size: int) -> int:
    return -(-vocab_size // BITS_PER_WORD)


class MaskBuffer:
    """One row of mask words, reused for every sequence with a matcher.

    Args:
        vocab_size: tokens per row; bits past it are ignored.
        device: where the logits are.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._words = torch.zeros(num_mask_words(vocab_size), dtype=torch.int32)
        self._shifts = torch.arange(BITS_PER_WORD, dtype=torch.int32)

    def apply(self, row: torch.Tensor, matcher: TokenMatcher) -> None:
        """Set the logits ``row`` [vocab_size] of every token that ``matcher`` forbids to -inf.

        Raises:
            EngineError: nothing is allowed, so that no token could be sampled; ``row`` is as it was.
        """
        self._words.zero_()
        matcher.fill_mask(self._words.data_ptr(), self._words.numel())
        allowed = ((self._words.unsqueeze(1) >> self._shifts) & 1).view(-1)[: self._vocab_size].bool()
        if not bool(allowed.any()):
            raise EngineError("The constraint allows none of the tokens that this model can generate.")
        row.masked_fill_(~allowed.to(self._device), float("-inf"))
