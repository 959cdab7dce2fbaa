"""The tokenizer and the template behind the served model, for endpoints that count and show instead of generating."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pocketllm.errors import UnsupportedFeatureError
from pocketllm.host.engine_host import EngineHost
from pocketllm.types import Capabilities, GenerationRequest
from pocketllm_server.served_model import ServedModel

if TYPE_CHECKING:
    from pocketllm.prompt.builder import PromptBuilder

_NO_LIMIT = 2**62


def prompts_of(model: ServedModel) -> PromptBuilder:
    """The prompt boundary of the slot the model lives in; it may be used from any thread.

    Raises:
        BackendUnavailableError: no engine is ready.
        UnsupportedFeatureError: this model has no slot of ours, and so no tokenizer that could be asked.
    """
    host = getattr(model, "host", None)
    if not isinstance(host, EngineHost):
        raise UnsupportedFeatureError("The served model brings no tokenizer: use one that runs in an engine slot.")
    return host.prompts


def prompt_tokens(prompts: PromptBuilder, request: GenerationRequest, capabilities: Capabilities) -> tuple[int, ...]:
    """The token ids a request would be prefilled with, whether or not they fit the context."""
    return prompts.prepare(request, _unlimited(capabilities)).request.prompt_tokens


def _unlimited(capabilities: Capabilities) -> Capabilities:
    return msgspec.structs.replace(capabilities, max_model_len=_NO_LIMIT)
