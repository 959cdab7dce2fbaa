"""Restricting a row of logits to the tokens a matcher allows."""

from __future__ import annotations

from typing import Protocol

import torch

BITS_PER_WORD = 32


class TokenMatcher(Protocol):
    """Follows one sequence and knows which tokens may come next. Called from the engine's thread only."""

    def fill_bitmask(self, address: int, num_words: int) -> None:
        """Write ``num_words`` int32 words at ``address``: bit i of word w is 1 when token 32 w + i is allowed."""

    def accept(self, token_id: int) -> None:
        """``token_id`` was generated; the next mask follows it."""


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
            RuntimeError: nothing is allowed, so that no token could be sampled.
        """
        self._words.zero_()
        matcher.fill_bitmask(self._words.data_ptr(), self._words.numel())
        allowed = ((self._words.unsqueeze(1) >> self._shifts) & 1).view(-1)[: self._vocab_size].bool()
        if not bool(allowed.any()):
            raise RuntimeError("the token matcher allows no token at all")
        row.masked_fill_(~allowed.to(self._device), float("-inf"))
