"""The engine object: the hooks that core calls, on the callers' threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pocketllm.engine.call import GenerateCall
from pocketllm.engine.outbox import Outbox
from pocketllm.errors import ConfigurationError, UnsupportedFeatureError
from pocketllm.hookspecs import hookimpl
from pocketllm.structured import TokenMatcher, compile_constraint
from pocketllm.types import Capabilities, EngineStats, FinishReason, GenerationRequest
from pocketllm_torch.engine.drafter import Drafter
from pocketllm_torch.engine.inbox import Inbox
from pocketllm_torch.engine.loop import Loop
from pocketllm_torch.engine.sampler import Sampler
from pocketllm_torch.engine.scheduler import Scheduler
from pocketllm_torch.engine.step import Executor

if TYPE_CHECKING:
    from pocketllm.checkpoint import Tokenizer


class TorchEngine:
    """Continuous batching over one model.

    Threads: the hooks may be called from any thread. They leave messages for the loop, whose thread does the work.
    """

    def __init__(
        self,
        *,
        executor: Executor,
        scheduler: Scheduler,
        sampler: Sampler,
        capabilities: Capabilities,
        num_threads: int,
        tokenizer: Tokenizer | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        if drafter is not None and capabilities.batch_invariant:
            raise ValueError("a deterministic engine has no drafter: rows computed together differ in their last bits")
        self._capabilities = capabilities
        self._tokenizer = tokenizer
        self._events = Outbox()
        self._inbox = Inbox()
        self._loop = Loop(
            executor=executor,
            scheduler=scheduler,
            sampler=sampler,
            inbox=self._inbox,
            events=self._events,
            num_threads=num_threads,
            sticky_errors=capabilities.details.get("device") != "cpu",
            drafter=drafter,
        )
        self._loop.start()

    @property
    def events(self) -> Outbox:
        return self._events

    @hookimpl
    def pocketllm_capabilities(self) -> Capabilities:
        return self._capabilities

    @hookimpl
    def pocketllm_generate(self, call: GenerateCall) -> bool:
        self._inbox.submit(call.request, self._matchers(call.request))
        return True

    @hookimpl
    def pocketllm_cancel(self, handle: int, reason: str) -> None:
        self._inbox.cancel(handle)

    @hookimpl
    def pocketllm_stats(self) -> EngineStats:
        return self._loop.statistics.snapshot

    @hookimpl
    def pocketllm_close(self, deadline_s: float) -> None:
        self._inbox.close()
        if not self._loop.join(max(0.0, deadline_s)):
            # A step outlasts the deadline.
            self._loop.abandon(FinishReason.CANCELLED)

    def _matchers(self, request: GenerationRequest) -> list[TokenMatcher | None]:
        """One matcher per choice; core has validated the constraint, so compiling it is quick."""
        if request.constraint is None:
            return [None] * len(request.choices)
        if self._tokenizer is None:
            raise UnsupportedFeatureError(
                "Structured output needs a tokenizer, and this checkpoint has none.", param="response_format"
            )
        try:
            compiled = compile_constraint(request.constraint, self._tokenizer)
        except ConfigurationError as error:
            raise UnsupportedFeatureError(error.message, param=error.param) from error
        return [compiled.matcher(request.stop_token_ids) for _ in request.choices]
