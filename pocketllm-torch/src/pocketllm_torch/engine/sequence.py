"""One choice of one request on its way through the engine."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pocketllm.types import GenerationRequest, TokenLogprob

if TYPE_CHECKING:
    from pocketllm_torch.engine.sampler import SamplingState


class Phase(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"


@dataclass(eq=False)
class PromptGroup:
    """The choices of one request. The first one admitted computes the prompt; the others take over its blocks."""

    leader: Sequence | None = None
    followers: list[Sequence] = field(default_factory=list)


@dataclass(eq=False)
class Sequence:
    """Tokens, progress and cache blocks of one choice. Only the engine's thread touches it after it was queued.

    ``tokens`` is the prompt and then what was generated. Positions below ``num_computed`` have their keys and values
    in ``blocks``. ``arrival`` orders sequences of one priority. ``slot`` is its own while it runs, and -1 otherwise.
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
    phase: Phase = Phase.WAITING
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    slot: int = -1
    sampling: SamplingState | None = None
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_reported: bool = False

    @classmethod
    def from_request(cls, request: GenerationRequest, first_arrival: int) -> list[Sequence]:
        """One sequence per choice. Core has filled in choices, budget and stop ids."""
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

    def __repr__(self) -> str:
        return f"Sequence({self.handle}, {self.phase.value}, {self.num_computed}/{len(self.tokens)} computed)"
