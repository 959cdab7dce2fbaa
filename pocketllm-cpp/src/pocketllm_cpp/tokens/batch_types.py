"""What a batch scheduler is asked and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class QwenBatchSamplingParams:
    """Sampling and limits of one request.

    Attributes:
        temperature: 0 is greedy.
        top_k: 0 for no limit.
        max_new_tokens: cut to what the context leaves.
        stop_token_ids: end the request besides the checkpoint's own end-of-sequence ids.
        ignore_eos: the checkpoint's own ids end nothing.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 20
    seed: int = 0
    max_new_tokens: int = 256
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False


@dataclass(frozen=True)
class EngineCaps:
    """What the engine under a scheduler does. Constant.

    Attributes:
        max_slots: sequences that may run together.
        fixed_temperature, fixed_top_p, fixed_top_k, fixed_seed: in force where a request cannot choose, which here it
            always can.
    """

    max_slots: int
    paged_kv: bool = True
    continuous_batching: bool = True
    chunked_prefill: bool = True
    per_request_sampling: bool = True
    per_request_top_k: bool = True
    structured_outputs: bool = False
    logprobs: bool = False
    fixed_temperature: float = 0.0
    fixed_top_p: float = 1.0
    fixed_top_k: int = 0
    fixed_seed: int = 0


@dataclass(frozen=True)
class SchedulerGenerationResult:
    """How a request ended.

    Attributes:
        generated_tokens: every token the engine generated, in order. A stop token that ended the request is the last of
            them; :attr:`answer_tokens` leaves it out.
        finish_reason: "stop", "length", "cancelled" or "error".
        completion_tokens: the length of ``generated_tokens``.
        cached_tokens: of the prompt's tokens, those that were not computed again.
        total_seconds, ttft_seconds, prefill_seconds: from submission, as this process saw the events; the first token
            belongs to the prefill.
        decode_seconds: from the first token to the end. Negative, as the others, where there was none.
    """

    request_id: int
    generated_tokens: tuple[int, ...]
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    total_seconds: float = -1.0
    ttft_seconds: float = -1.0
    prefill_seconds: float = -1.0
    decode_seconds: float = -1.0
    stopped_by_token: bool = False
    error: str = ""

    @property
    def answer_tokens(self) -> tuple[int, ...]:
        """``generated_tokens`` without the stop token."""
        return self.generated_tokens[:-1] if self.stopped_by_token else self.generated_tokens


@dataclass(frozen=True)
class QwenSchedulerStats:
    """Counters now. Blocks in ``cache_pinned`` hold prefixes for reuse and are given up when blocks run out."""

    waiting: int
    running: int
    completed: int
    cancelled: int
    free_slots: int
    total_blocks: int
    free_blocks: int
    reserved_blocks: int
    cache_pinned: int
