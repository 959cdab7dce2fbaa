"""The path that chat and completions share: bytes, fields, policy, normalisation, answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from pocketllm.fields import unknown_field
from pocketllm.types import Capabilities, GenerationRequest
from pocketllm_server.http_io import check_json, read_body
from pocketllm_server.limits import check_prompt_limits
from pocketllm_server.service import Service
from pocketllm_server.streams import Endpoint, answer, stream
from pocketllm_server.wire.decode import decode_object, is_quick, set_fields, unknown_fields
from pocketllm_server.wire.ignored_fields import ignored_fields_header

logger = logging.getLogger(__name__)


class ReadRequest(msgspec.Struct, frozen=True):
    """A body that passed: the fields that were set, one request per prompt, and the names that nobody documents."""

    fields: Mapping[str, Any]
    requests: Sequence[GenerationRequest]
    ignored: Sequence[str]


class GenerateRoute:
    """Base of the generating routes; a subclass gives the wire Struct, how it becomes requests, and the answer."""

    shape: type[msgspec.Struct]
    endpoint: str
    """Name of the endpoint in the field table."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def requests(self, fields: Mapping[str, Any], capabilities: Capabilities) -> Sequence[GenerationRequest]:
        """One request per prompt; fields that the engine does not act on are refused."""
        raise NotImplementedError

    def reply(self, fields: Mapping[str, Any], requests: Sequence[GenerationRequest]) -> Endpoint:
        """The form of the answer to one request."""
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        settings = service.settings
        check_json(scope)
        data = await read_body(scope, receive, settings.max_body_bytes, settings.body_timeout_s)
        if is_quick(data):
            read = self._read(data)
        else:
            read = await service.read_large(self._read, data)
        headers = ignored_fields_header(read.ignored)
        if headers:
            logger.info("request %s: ignored fields: %s", read.requests[0].request_id, headers[0][1].decode())
        created = int(time.time())
        reply = self.reply(read.fields, read.requests)
        if not read.fields.get("stream"):
            await answer(service, reply, read.requests, created, receive, send, headers=headers)
            return
        with_usage = bool(read.fields.get("stream_options", {}).get("include_usage"))
        await stream(
            service, reply, read.requests, created, scope, receive, send, with_usage=with_usage, headers=headers
        )

    def _read(self, data: bytes) -> ReadRequest:
        body = decode_object(data, self._service.settings.max_json_values)
        fields = set_fields(body, self.shape)
        ignored = unknown_fields(body, self.shape)
        if ignored and self._service.settings.strict_fields:
            raise unknown_field(ignored[0], self.endpoint)
        self._service.check_accepting()
        requests = self.requests(fields, self._service.model.capabilities)
        check_prompt_limits(self._service.settings, requests)
        return ReadRequest(fields, requests, ignored)
