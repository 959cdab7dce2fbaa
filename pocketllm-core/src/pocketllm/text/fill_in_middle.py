"""Filling a gap: the control tokens some checkpoints were trained to read a prefix and a suffix between.

The order is prefix, suffix, middle for all of them (Bavarian et al., arXiv 2207.14255, PSM mode).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pocketllm.checkpoint import Tokenizer

_GGUF_KEYS = ("fim_pre_token_id", "fim_suf_token_id", "fim_mid_token_id")
_SURFACES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
)


class GapTokens(msgspec.Struct, frozen=True):
    """Ids that stand in front of the prefix, of the suffix, and of the text to be written."""

    prefix: int
    suffix: int
    middle: int

    def frame(self, prefix: list[int], suffix: list[int]) -> list[int]:
        """The prompt whose completion belongs between ``prefix`` and ``suffix``."""
        return [self.prefix, *prefix, self.suffix, *suffix, self.middle]


def find_gap_tokens(tokenizer: Tokenizer, metadata: Mapping[str, object]) -> GapTokens | None:
    """The tokens of this checkpoint, from a GGUF's own keys or by their known surfaces; None when it has none."""
    named = [metadata.get(f"tokenizer.ggml.{key}") for key in _GGUF_KEYS]
    if all(isinstance(token, int) and 0 <= token < tokenizer.vocab_size for token in named):
        return GapTokens(*(int(str(token)) for token in named))
    for surfaces in _SURFACES:
        ids = [tokenizer.token_id(surface) for surface in surfaces]
        if None not in ids:
            return GapTokens(*(token for token in ids if token is not None))
    return None
