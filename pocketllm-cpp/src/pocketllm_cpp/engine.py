"""The engine object that core holds: hooks on the caller's threads over a native engine with a thread of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pocketllm.engine.closing import close_at_exit
from pocketllm.errors import BackendUnavailableError, ConfigurationError, EngineError, UnsupportedFeatureError
from pocketllm.hookspecs import hookimpl
from pocketllm.types import Capabilities, EngineStats, GenerationRequest
from pocketllm_cpp import _native
from pocketllm_cpp.batches import BatchSource
from pocketllm_cpp.constraints import ConstraintMatchers
from pocketllm_cpp.sampling import native_sampling

if TYPE_CHECKING:
    from pocketllm.engine.call import GenerateCall

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
        self._native.close(deadline_s)

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
