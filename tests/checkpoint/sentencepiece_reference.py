"""SentencePiece's way of merging, written for truth and not for speed: the reference of the GGUF tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

SPACE_MARK = "\u2581"


def encode_segment(text: str, scores: Mapping[str, float], ids: Mapping[str, int]) -> list[int]:
    """Token ids of a text without special tokens.

    Start from characters; join the neighbours whose union scores highest, the leftmost of equals; until none is left.
    What is no token then becomes its UTF-8 bytes.

    Args:
        text: with spaces already replaced by the mark.
        scores: of the normal tokens, by surface.
        ids: of all tokens, by surface.
    """
    pieces = list(text)
    while True:
        joined = [(-scores[a + b], index) for index, (a, b) in enumerate(pairwise(pieces)) if a + b in scores]
        if not joined:
            break
        _, index = min(joined)
        pieces[index : index + 2] = [pieces[index] + pieces[index + 1]]
    found: list[int] = []
    for piece in pieces:
        if piece in scores:
            found.append(ids[piece])
        else:
            found.extend(ids[f"<0x{byte:02X}>"] for byte in piece.encode("utf-8"))
    return found
