"""``/v1/models``: the one model, what its engine can do, and which request fields that makes work."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from pocketllm.errors import BackendUnavailableError
from pocketllm.fields import BOTH, supported_fields
from pocketllm_server.http_io import send_json
from pocketllm_server.service import Service
from pocketllm_server.wire import anthropic, responses_api
from pocketllm_server.wire.dialect import supported_rows


class Models:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        card: dict[str, Any] = {
            "id": service.settings.served_model_name,
            "object": "model",
            "created": service.created,
            "owned_by": "pocketllm",
        }
        try:
            capabilities = service.model.capabilities
        except BackendUnavailableError:
            pass  # still loading: the name is known, what the engine can do is not
        else:
            card["max_model_len"] = capabilities.max_model_len
            card["capabilities"] = msgspec.to_builtins(capabilities)
            card["supported_fields"] = {
                **{endpoint: supported_fields(endpoint, capabilities) for endpoint in BOTH},
                "responses": supported_rows(responses_api.ROWS, capabilities),
                "messages": supported_rows(anthropic.ROWS, capabilities),
            }
        await send_json(send, 200, {"object": "list", "data": [card]})
