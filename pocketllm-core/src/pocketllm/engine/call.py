"""The one-shot object of the generate hook: the request, and what extensions add to it before it is sealed."""

from __future__ import annotations

from collections.abc import Callable

from pocketllm.errors import ConfigurationError, PluginError
from pocketllm.stages import TextStageFactory, TokenStageFactory
from pocketllm.types import Finish, FinishReason, GenerationRequest, StepBatch


class GenerateCall:
    """Argument of ``pocketllm_generate``.

    pluggy wrappers cannot pass a replaced argument inward, so an extension changes this object: a wrapper before it
    yields, a plain implementation before it returns None. Stages run while core drains events, never on the engine's
    thread: text passes the last added stage first, so the outermost wrapper sees what the caller will get. Once the
    engine's turn has come, or somebody emitted, the call is sealed and every change raises.
    """

    def __init__(self, request: GenerationRequest, emit: Callable[[StepBatch], None] | None = None) -> None:
        self._request = request
        self._emit = emit
        self._sealed = False
        self.token_stages: list[TokenStageFactory] = []
        self.text_stages: list[TextStageFactory] = []

    @property
    def request(self) -> GenerationRequest:
        return self._request

    def add_token_stage(self, factory: TokenStageFactory) -> None:
        self._check_open("add_token_stage")
        self.token_stages.append(factory)

    def add_text_stage(self, factory: TextStageFactory) -> None:
        self._check_open("add_text_stage")
        self.text_stages.append(factory)

    def replace_request(self, request: GenerationRequest) -> None:
        """Put another request in place; its id and choices must stay, since core has registered them."""
        self._check_open("replace_request")
        if request.choices != self._request.choices or request.request_id != self._request.request_id:
            raise ConfigurationError("replace_request must keep request_id and choices.", param="request")
        self._request = request

    def emit(self, batch: StepBatch) -> None:
        """Post events in the engine's place (a cache, a canned answer); the implementation then returns True.

        The stream rules bind the emitter: every handle of the request needs exactly one Finish, last.
        """
        if self._emit is None:
            raise PluginError("This call takes no events: only an extension on the host's side may answer it.")
        self.seal()
        self._emit(batch)

    def answer(self, token_ids: list[int], finish_reason: str = FinishReason.STOP) -> bool:
        """Emit the same finished answer for every choice; returns True, so ``return call.answer(ids)`` accepts."""
        for choice in self._request.choices:
            handles = [choice.handle] * len(token_ids)
            finish = Finish(handle=choice.handle, reason=str(finish_reason))
            flags = [0] * len(token_ids)
            self.emit(StepBatch(handles=handles, tokens=list(token_ids), flags=flags, finished=[finish]))
        return True

    def seal(self) -> None:
        """Called by core right before the engine's own implementation, and by :meth:`emit`."""
        self._sealed = True

    def _check_open(self, method: str) -> None:
        if self._sealed:
            raise PluginError(
                f"{method} was called when the request was sealed already: call it before the wrapper yields."
            )

    def __repr__(self) -> str:
        return f"GenerateCall({self._request!r})"
