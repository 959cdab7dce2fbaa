"""What the server needs of an open model; :class:`pocketllm.AsyncLLM` is one, and tests bring a scripted one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from pocketllm.async_stream import Take
from pocketllm.errors import PocketLLMError
from pocketllm.types import (
    CancelReason,
    Capabilities,
    EngineStats,
    GenerationRequest,
    GenerationResult,
    HealthStatus,
    LogprobEntry,
)
from pocketllm_server.wire.completions_logprobs import TokenBytes

if TYPE_CHECKING:
    from pocketllm.prompt.builder import PromptBuilder


class AcceptedRequest(Protocol):
    """A request as the engine got it, and what the engine said of its prompt."""

    @property
    def request(self) -> GenerationRequest:
        """With the prompt's token ids."""

    @property
    def prompt_logprobs(self) -> Sequence[LogprobEntry | None] | None:
        """One entry per prompt token, None for the first; None until the engine has reported them."""

    @property
    def failure(self) -> PocketLLMError | None:
        """What has ended the request, where a plugin or the pipeline itself did."""


class Host(Protocol):
    """Where the engine lives. Both raise BackendUnavailableError while no engine is ready."""

    @property
    def tokenizer(self) -> TokenBytes: ...

    @property
    def prompts(self) -> PromptBuilder:
        """Renders and tokenizes; may be used from any thread."""


class EventStream(Protocol):
    """One accepted request, read once: by :meth:`forward` or by :meth:`result`."""

    @property
    def request_id(self) -> str: ...

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def record(self) -> AcceptedRequest: ...

    async def forward(self, take: Take) -> None:
        """Give merged deltas to ``take`` as they come; a coroutine it returns is awaited before it is given more.

        The last event of a choice carries its finish reason, the very last one usage.
        """

    async def result(self) -> GenerationResult: ...

    async def aclose(self) -> None:
        """Stop reading; the last reader gone cancels the request. Idempotent."""


class ModelClient(Protocol):
    """Methods are called on the event loop; those that are not coroutines return at once."""

    async def start(self) -> None:
        """Begin to load in the background."""

    async def ready(self) -> None:
        """Wait until the first load has ended; raises its PocketLLMError."""

    @property
    def capabilities(self) -> Capabilities:
        """Raises BackendUnavailableError while no engine is ready. Read from any thread."""

    @property
    def host(self) -> Host: ...

    def health(self) -> HealthStatus: ...

    async def changed(self) -> None:
        """Wait until what :meth:`health` says has changed, or may have."""

    async def submit(self, request: GenerationRequest) -> EventStream:
        """Accept a request or raise the PocketLLMError that says why not."""

    def cancel(self, request_id: str, reason: CancelReason = ...) -> bool: ...

    def stats(self) -> EngineStats: ...

    async def close(self, deadline_s: float = ...) -> None: ...
