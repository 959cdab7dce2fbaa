"""``/v1/models``: each model, what its engine can do, and which request fields that makes work."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from pocketllm.errors import BackendUnavailableError
from pocketllm.fields import BOTH, supported_fields
from pocketllm_server.models.model import Model
from pocketllm_server.service import Service
from pocketllm_server.transport.http_io import send_json
from pocketllm_server.wire import messages_request, responses_request
from pocketllm_server.wire.dialect import supported_rows


class ModelList:
    """``/v1/models``: a card for each model."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, {"object": "list", "data": [_card(model) for model in self._service.models]})


def _card(model: Model) -> dict[str, Any]:
    card: dict[str, Any] = {"id": model.name, "object": "model", "created": model.created, "owned_by": "pocketllm"}
    try:
        capabilities = model.client.capabilities
    except BackendUnavailableError:
        return card  # still loading: the name is known, what the engine can do is not
    card["max_model_len"] = capabilities.max_model_len
    card["capabilities"] = msgspec.to_builtins(capabilities)
    card["supported_fields"] = {
        **{endpoint: supported_fields(endpoint, capabilities) for endpoint in BOTH},
        "responses": supported_rows(responses_request.ROWS, capabilities),
        "messages": supported_rows(messages_request.ROWS, capabilities),
    }
    return card
