"""``POST /v1/completions``: how its body is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pocketllm.errors import PocketLLMError
from pocketllm.fields import COMPLETIONS, unknown_field
from pocketllm.protocol import completion_request
from pocketllm.types import Capabilities, GenerationRequest
from pocketllm_server.routes.reader import Dialect
from pocketllm_server.wire.completions_request import CompletionBody


class CompletionsDialect(Dialect):
    """``/v1/completions``: one request for each prompt of the body."""

    shape = CompletionBody

    def refusal(self, name: str) -> PocketLLMError:
        return unknown_field(name, COMPLETIONS)

    def requests(self, fields: Mapping[str, Any], capabilities: Capabilities) -> Sequence[GenerationRequest]:
        return completion_request(fields, capabilities=capabilities)
