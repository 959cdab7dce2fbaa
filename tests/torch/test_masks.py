"""Allowed-token masks, with a matcher written by hand."""

from __future__ import annotations

import ctypes

import pytest
import torch

from pocketllm.errors import EngineError
from pocketllm_torch.engine.masks import MaskBuffer, num_mask_words


class ListMatcher:
    """Allows one listed set of ids after another."""

    def __init__(self, *allowed: set[int]) -> None:
        self.allowed = list(allowed)
        self.accepted: list[int] = []

    is_done = False
    allows_eos = False

    def fill_mask(self, address: int, num_words: int) -> None:
        words = (ctypes.c_uint32 * num_words).from_address(address)
        for token in self.allowed[len(self.accepted)]:
            words[token // 32] |= 1 << (token % 32)

    def accept(self, token_id: int) -> bool:
        self.accepted.append(token_id)
        return True


@pytest.mark.parametrize("vocab_size, words", [(1, 1), (32, 1), (33, 2), (49152, 1536)])
def test_a_mask_has_one_bit_per_token(vocab_size: int, words: int) -> None:
    assert num_mask_words(vocab_size) == words


def test_a_mask_keeps_exactly_the_allowed_tokens() -> None:
    for vocab_size in (31, 32, 70):
        allowed = {0, 5, 30, vocab_size - 1}
        row = torch.zeros(vocab_size)
        MaskBuffer(vocab_size, row.device).apply(row, ListMatcher(allowed))
        assert {index for index, value in enumerate(row.tolist()) if value == 0.0} == allowed


def test_a_buffer_is_clean_for_the_next_sequence() -> None:
    buffer = MaskBuffer(40, torch.device("cpu"))
    buffer.apply(torch.zeros(40), ListMatcher({1, 39}))
    row = torch.zeros(40)
    buffer.apply(row, ListMatcher({2}))
    assert row.isfinite().nonzero().tolist() == [[2]]


def test_bits_past_the_vocabulary_do_not_count() -> None:
    with pytest.raises(EngineError, match="allows none of the tokens"):
        MaskBuffer(40, torch.device("cpu")).apply(torch.zeros(40), ListMatcher({41}))
