"""From a step's plain data to logits: flat rows in, one forward pass, the rows that matter out."""

from __future__ import annotations

from itertools import accumulate

import torch

from pocketllm.types import TokenLogprob
from pocketllm_torch.engine.layout import LayoutBuilder
from pocketllm_torch.engine.logprobs import token_logprobs
from pocketllm_torch.engine.step import Span, StepInput, StepOutput
from pocketllm_torch.layers.caches import Caches
from pocketllm_torch.models.registry import Model

# Rows of logits made at once for prompt log probabilities: [rows, vocab] floats are the largest tensors there are.
_LOGIT_ROWS = 64


class Runner:
    """Executes steps on one model and its caches, in this process.

    Args:
        vocab_size: ids that can be generated; the model's rows past it are padding and cut off.
        one_by_one: run every sequence in a forward pass of its own. Then shapes, and with them the order of every sum,
            depend on that sequence alone, and so does its output, bit for bit.

    Threads: one at a time.
    """

    def __init__(
        self, model: Model, caches: Caches, device: torch.device, vocab_size: int, *, one_by_one: bool = False
    ) -> None:
        self._model = model
        self._caches = caches
        self._device = device
        self._vocab_size = vocab_size
        self._one_by_one = one_by_one
        self._layouts = LayoutBuilder(caches, model.dtype, device, views=not one_by_one)

    def execute(self, step: StepInput) -> StepOutput:
        """Make the step's copies, compute its rows, and store their keys, values and states."""
        for source, target in step.block_copies:
            self._caches.copy_block(source, target)
        for source, target in step.slot_copies:
            self._caches.copy_slot(source, target)
        if not self._one_by_one:
            return self._forward(step.spans)
        outputs = [self._forward([span]) for span in step.spans]
        logits = [output.logits for output in outputs if output.logits is not None]
        return StepOutput(
            torch.cat(logits) if logits else None,
            {index: entries for index, output in enumerate(outputs) for entries in output.prompt_logprobs.values()},
        )

    def _forward(self, spans: list[Span]) -> StepOutput:
        first_rows = [0, *accumulate(len(span.tokens) for span in spans[:-1])]
        for span in spans:
            if span.start == 0:
                self._caches.clear_slot(span.slot)
        token_ids = self._tensor([token for span in spans for token in span.tokens])
        positions = self._tensor(
            [position for span in spans for position in range(span.start, span.start + len(span.tokens))]
        )
        hidden = self._model.forward(token_ids, positions, self._layouts.build(spans, first_rows), self._caches)
        prompt_logprobs = {
            index: self._prompt_logprobs(span, hidden[first : first + len(span.targets)])
            for index, (span, first) in enumerate(zip(spans, first_rows, strict=True))
            if span.targets
        }
        return StepOutput(self._wanted_logits(spans, first_rows, hidden), prompt_logprobs)

    def _wanted_logits(self, spans: list[Span], first_rows: list[int], hidden: torch.Tensor) -> torch.Tensor | None:
        ends = [first + len(span.tokens) for span, first in zip(spans, first_rows, strict=True)]
        rows = [row for span, end in zip(spans, ends, strict=True) for row in range(end - span.num_logits, end)]
        if not rows:
            return None
        if len(rows) != hidden.shape[0]:
            hidden = hidden.index_select(0, self._tensor(rows))
        return self._logits(hidden)

    def _prompt_logprobs(self, span: Span, hidden: torch.Tensor) -> list[TokenLogprob]:
        """Row i of the span predicts ``targets[i]``, which stands at the position behind it."""
        entries: list[TokenLogprob] = []
        for start in range(0, len(span.targets), _LOGIT_ROWS):
            targets = span.targets[start : start + _LOGIT_ROWS]
            logits = self._logits(hidden[start : start + len(targets)])
            first_position = span.start + start + 1
            entries += token_logprobs(logits, targets, [span.num_top] * len(targets), first_row=first_position)
        return entries

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._model.logits(hidden)[:, : self._vocab_size]

    def _tensor(self, values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)
