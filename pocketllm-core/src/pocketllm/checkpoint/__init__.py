"""Checkpoints by their headers: where the tensors lie, configuration, tokenizer, chat template, stop ids.

Nothing here reads a tensor or imports a runtime. A file is never trusted: every length is compared with the file
before memory is taken, and whatever is wrong with one ends in a single ``CheckpointError``.
"""

from __future__ import annotations

from pocketllm.checkpoint.checkpoint import Checkpoint, open_checkpoint
from pocketllm.checkpoint.tensor_info import TensorInfo
from pocketllm.checkpoint.tokenizer import Tokenizer

__all__ = ["Checkpoint", "TensorInfo", "Tokenizer", "open_checkpoint"]
