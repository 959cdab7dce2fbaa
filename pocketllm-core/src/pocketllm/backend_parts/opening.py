"""What an opening asks of a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pocketllm.errors import CheckpointError

if TYPE_CHECKING:
    from pocketllm.checkpoint import Checkpoint, Tokenizer


def tokenizer_or_none(checkpoint: Checkpoint) -> Tokenizer | None:
    """The checkpoint's tokenizer; None where it has none: such a model is served by token ids alone. Up to 2 s."""
    try:
        return checkpoint.tokenizer()
    except CheckpointError:
        return None


def usable_vocab_size(num_logits: int, tokenizer: Tokenizer | None) -> int:
    """Ids that may be generated, of a head with ``num_logits``: those past the tokenizer's vocabulary are padding."""
    return num_logits if tokenizer is None else min(num_logits, tokenizer.vocab_size)
