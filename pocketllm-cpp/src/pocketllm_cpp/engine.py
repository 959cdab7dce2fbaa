"""The engine object that core holds: hooks on the caller's threads over a native engine with a thread of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pocketllm.errors import BackendUnavailableError, ConfigurationError, EngineError, UnsupportedFeatureError
from pocketllm.hookspecs import hookimpl
from pocketllm.types import Capabilities, EngineStats, GenerationRequest
from pocketllm_cpp import _native
from pocketllm_cpp.batches import BatchSource
from pocketllm_cpp.closing import close_at_exit
from pocketllm_cpp.constraints import ConstraintMatchers

if TYPE_CHECKING:
    from pocketllm.engine.call import GenerateCall
    from pocketllm.sampling_params import SamplingParams

_SEED_MASK = 2**64 - 1


class CppEngine:
    """Continuous batching over one model, in native code.

    Threads: the hooks may be called from any thread; they queue messages for the native thread, which needs the
    interpreter's lock for nothing but constraints that begin after reasoning.
    """

    def __init__(self, native: _native.Engine, capabilities: Capabilities, matchers: ConstraintMatchers | None) -> None:
        self._native = native
        self._capabilities = capabilities
        self._matchers = matchers
        self.events = BatchSource(native)
        self._stats = EngineStats()
        close_at_exit(native)

    @hookimpl
    def pocketllm_capabilities(self) -> Capabilities:
        return self._capabilities

    @hookimpl
    def pocketllm_generate(self, call: GenerateCall) -> bool | None:
        request = call.request
        self._check(request)
        sampling = native_sampling(request.sampling_params)
        choices = self._choices(request)
        try:
            self._native.submit(
                request.prompt_tokens,
                choices,
                sampling,
                request.stop_token_ids,
                request.priority,
                request.cache_salt or "",
            )
        except EngineError as error:
            raise BackendUnavailableError(error.message) from error
        except ConfigurationError as error:
            raise UnsupportedFeatureError(error.message, param=error.param) from error
        return True

    @hookimpl
    def pocketllm_cancel(self, handle: int, reason: str) -> None:
        try:
            self._native.cancel(handle)
        except EngineError:
            pass  # given back: every handle has had its end

    @hookimpl
    def pocketllm_stats(self) -> EngineStats:
        try:
            self._stats = self._read_stats()
        except EngineError:
            pass  # given back: the last ones stay
        return self._stats

    def _read_stats(self) -> EngineStats:
        stats = self._native.stats()
        return EngineStats(
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            num_steps=stats.num_steps,
            num_slots=stats.num_slots,
            num_free_slots=stats.num_free_slots,
            num_blocks=stats.num_blocks,
            num_free_blocks=stats.num_free_blocks,
            num_preemptions=stats.num_preemptions,
            num_prompt_tokens=stats.num_prompt_tokens,
            num_generated_tokens=stats.num_generated_tokens,
            prefix_cache_hits=stats.prefix_cache_hits,
            prefix_cache_misses=stats.prefix_cache_misses,
            prefix_cache_reused_tokens=stats.prefix_cache_reused_tokens,
            details={"num_cached_blocks": stats.num_cached_blocks},
        )

    @hookimpl
    def pocketllm_close(self, deadline_s: float) -> None:
        try:
            self._native.close(deadline_s)
        except EngineError:
            pass  # given back

    def _check(self, request: GenerationRequest) -> None:
        if request.task != "generate":
            raise UnsupportedFeatureError(f"task = {request.task!r}: this engine only generates.", param="task")
        if request.adapter is not None:
            raise UnsupportedFeatureError("This engine has no adapters.", param="adapter")
        limit = self._capabilities.vocab_size
        for name, ids in (("prompt_tokens", request.prompt_tokens), ("logit_bias", request.sampling_params.logit_bias)):
            if ids and not 0 <= min(ids) <= max(ids) < limit:
                raise UnsupportedFeatureError(f"{name} has an id outside this model's {limit} tokens.", param=name)

    def _choices(self, request: GenerationRequest) -> list[tuple[int, int, int, int]]:
        """Handle, seed and matcher of each choice; core has validated the constraint, so compiling it is quick."""
        if request.constraint is None:
            return [(choice.handle, choice.seed & _SEED_MASK, 0, 0) for choice in request.choices]
        if self._matchers is None:
            raise UnsupportedFeatureError(
                "Structured output needs a tokenizer, and this checkpoint has none.", param="response_format"
            )
        try:
            pointers = self._matchers.pointers(request.constraint, request.stop_token_ids, len(request.choices))
        except ConfigurationError as error:
            raise UnsupportedFeatureError(error.message, param=error.param) from error
        return [
            (choice.handle, choice.seed & _SEED_MASK, functions, matcher)
            for choice, (functions, matcher) in zip(request.choices, pointers, strict=True)
        ]


def native_sampling(params: SamplingParams) -> _native.SamplingParams:
    """Core's parameters as the native engine takes them; core has checked them and filled in the budget."""
    assert params.max_tokens is not None
    sampling = _native.SamplingParams()
    sampling.temperature = params.temperature
    sampling.top_p = 1.0 if params.top_p is None else params.top_p
    sampling.top_k = params.top_k or 0
    sampling.min_p = params.min_p or 0.0
    sampling.repetition_penalty = params.repetition_penalty
    sampling.frequency_penalty = params.frequency_penalty
    sampling.presence_penalty = params.presence_penalty
    sampling.logit_bias = list(params.logit_bias.items())
    sampling.max_tokens = params.max_tokens
    sampling.min_tokens = params.min_tokens
    sampling.logprobs = params.logprobs
    sampling.num_top_logprobs = params.num_top_logprobs
    sampling.prompt_logprobs = params.prompt_logprobs
    return sampling
