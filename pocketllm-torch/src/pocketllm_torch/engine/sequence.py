"""One choice of one request on its way through the engine.

Only the scheduler writes to a sequence once it was queued, and only the sampler to its sampling state. Both work on the
engine's thread.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pocketllm.types import FinishReason, GenerationRequest, TokenLogprob

if TYPE_CHECKING:
    import torch

    from pocketllm.sampling_params import SamplingParams
    from pocketllm.structured import TokenMatcher


class Phase(enum.Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"


@dataclass
class SamplingState:
    """What sampling keeps per sequence. ``counts`` [vocab] are the generated tokens, ``seen`` [vocab] those plus the
    prompt's; they exist only for sequences with penalties."""

    params: SamplingParams
    plain: bool
    """True when logits are used as they are: no penalty, bias, minimum or mask."""
    matcher: TokenMatcher | None = None
    counts: torch.Tensor | None = None
    seen: torch.Tensor | None = None
    bias_ids: torch.Tensor | None = None
    bias_values: torch.Tensor | None = None
    stop_ids: torch.Tensor | None = None
    error: str | None = None
    """Why the sequence cannot continue: its constraint leaves no token. What was sampled for it last means nothing."""


@dataclass(eq=False)
class PromptGroup:
    """The choices of one request. The first one admitted computes the prompt; the others take over its blocks."""

    leader: Sequence | None = None
    followers: list[Sequence] = field(default_factory=list)


@dataclass(eq=False)
class Sequence:
    """Tokens, progress and cache blocks of one choice.

    ``tokens`` is the prompt and then what was generated. Positions below ``num_computed`` have their keys and values
    in ``blocks``. ``arrival`` orders sequences of one priority. ``slot`` is its own while it runs, and -1 otherwise.
    ``prompt_logprobs`` are those computed and not yet reported.
    """

    handle: int
    seed: int
    request: GenerationRequest
    arrival: int
    group: PromptGroup
    tokens: list[int]
    num_prompt_tokens: int
    max_tokens: int
    stop_ids: frozenset[int]
    sampling: SamplingState | None = None
    phase: Phase = Phase.WAITING
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    slot: int = -1
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_reported: bool = False

    @classmethod
    def from_request(
        cls, request: GenerationRequest, first_arrival: int, sampling: list[SamplingState] | None = None
    ) -> list[Sequence]:
        """One sequence per choice, with its state of ``sampling``. Core has filled in choices, budget and stop ids."""
        group = PromptGroup()
        params = request.sampling_params
        assert params.max_tokens is not None
        stop_ids = frozenset(request.stop_token_ids)
        return [
            cls(
                handle=choice.handle,
                seed=choice.seed,
                request=request,
                arrival=first_arrival + index,
                group=group,
                tokens=list(request.prompt_tokens),
                num_prompt_tokens=len(request.prompt_tokens),
                max_tokens=params.max_tokens,
                stop_ids=stop_ids,
                sampling=None if sampling is None else sampling[index],
            )
            for index, choice in enumerate(request.choices)
        ]

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key: higher priority first, then first come."""
        return (-self.request.priority, self.arrival)

    @property
    def is_decoding(self) -> bool:
        """True when only the newest generated token is left to compute."""
        return self.num_generated > 0 and self.num_computed == len(self.tokens) - 1

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.request.sampling_params.prompt_logprobs and not self.prompt_reported

    @property
    def error(self) -> str | None:
        """Why no token can be sampled for it any more."""
        return None if self.sampling is None else self.sampling.error

    def end_behind(self, tokens: list[int]) -> FinishReason | None:
        """Why it ends with ``tokens``, sampled and not yet appended to it; None when it continues."""
        if tokens[-1] in self.stop_ids or (not self.stop_ids and self._is_complete):
            return FinishReason.STOP
        return FinishReason.LENGTH if self.num_generated + len(tokens) >= self.max_tokens else None

    @property
    def _is_complete(self) -> bool:
        """Whether a constraint leaves nothing to generate; without stop ids nothing else tells the end."""
        return self.sampling is not None and self.sampling.matcher is not None and self.sampling.matcher.is_done

    def __repr__(self) -> str:
        return f"Sequence({self.handle}, {self.phase.value}, {self.num_computed}/{len(self.tokens)} computed)"
