"""What the native engine posts, in core's types. The native side has made all lists, so a batch costs one call."""

from __future__ import annotations

from typing import Any

from pocketllm.types import Finish, PromptReport, StepBatch, TokenLogprob
from pocketllm_cpp import _native


class BatchSource:
    """The native engine's event source, as core reads it. One thread at a time."""

    def __init__(self, native: _native.Engine) -> None:
        self._native = native
        self._is_open = True

    def fileno(self) -> int:
        """Readable while batches wait."""
        return self._native.fileno()

    def drain(self) -> list[StepBatch]:
        """All waiting batches in order, without blocking."""
        return [step_batch(fields) for fields in self._native.drain()] if self._is_open else []

    def close(self) -> None:
        """Free the descriptor, and with it the engine, which has been closed. Batches that still wait are gone."""
        self._is_open = False
        self._native.give_back()


def step_batch(fields: tuple[Any, ...]) -> StepBatch:
    """One batch from its columns; see ``batch_fields`` in csrc/bindings/engine.cpp."""
    handles, tokens, flags, logprobs, prompts, finished, fatal = fields
    return StepBatch(
        handles=handles,
        tokens=tokens,
        flags=flags,
        logprobs=[TokenLogprob(*row) for row in logprobs] if logprobs else [],
        prompts=[PromptReport(handle, cached, [TokenLogprob(*row) for row in rows]) for handle, cached, rows in prompts]
        if prompts
        else [],
        finished=[Finish(*end) for end in finished] if finished else [],
        fatal=fatal,
    )
