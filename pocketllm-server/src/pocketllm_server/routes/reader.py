"""From the bytes of a body to requests: one reader for every endpoint, and what differs between endpoints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from starlette.types import Receive, Scope

from pocketllm.errors import PocketLLMError
from pocketllm.types import Capabilities, GenerationRequest
from pocketllm_server.answers.reading import Reading
from pocketllm_server.config.settings import ServerSettings
from pocketllm_server.routes.prompt_limits import check_prompt_limits
from pocketllm_server.service import Service
from pocketllm_server.transport.http_io import check_json, read_body
from pocketllm_server.wire.decode import decode_object, is_quick, set_fields, unknown_fields

T = TypeVar("T")


class Dialect(ABC):
    """How an endpoint's body is said. A subclass translates; it is stateless, and used on any thread."""

    shape: type[msgspec.Struct]
    """Types and bounds of the fields."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings

    def without_effect(self, fields: Mapping[str, Any]) -> list[str]:
        """Values that are accepted without effect, and so named."""
        return []

    @abstractmethod
    def refusal(self, name: str) -> PocketLLMError:
        """Of a field that nobody acts on, in strict mode."""

    @abstractmethod
    def requests(self, fields: Mapping[str, Any], capabilities: Capabilities) -> Sequence[GenerationRequest]:
        """One request a prompt; values that the engine does not act on are refused."""

    def in_its_words(self, error: PocketLLMError) -> PocketLLMError:
        """An error about a chat field as one about the field of this endpoint that led to it."""
        return error


class Reader:
    """Reads the bodies of one endpoint: bytes, fields, policy, model, requests, bounds."""

    def __init__(self, service: Service, dialect: Dialect) -> None:
        self._service = service
        self._dialect = dialect

    async def read(self, scope: Scope, receive: Receive) -> Reading:
        """
        Raises:
            HTTPError, PocketLLMError: the body is refused.
            ClientGoneError: the client left before the end of the body.
        """
        return await read_with(self._service, self._read, scope, receive)

    def _read(self, data: bytes) -> Reading:
        service, dialect = self._service, self._dialect
        fields, ignored = decode_fields(data, dialect.shape, service.settings)
        ignored += dialect.without_effect(fields)
        if ignored and service.settings.strict_fields:
            raise dialect.refusal(ignored[0])
        service.check_accepting()
        model = service.models.of(fields.get("model"))
        requests = dialect.requests(fields, model.client.capabilities)
        try:
            check_prompt_limits(service.settings, requests)
        except PocketLLMError as error:
            raise dialect.in_its_words(error) from None
        return Reading(fields, model, requests, ignored)


async def read_with(service: Service, read: Callable[[bytes], T], scope: Scope, receive: Receive) -> T:
    """What ``read`` makes of the body; a large one is read on a thread.

    Raises:
        HTTPError: the body is not JSON by its headers, too large or too slow. And what ``read`` raises.
        ClientGoneError: the client left before the end of the body.
    """
    settings = service.settings
    check_json(scope)
    data = await read_body(scope, receive, settings.max_body_bytes, settings.body_timeout_s)
    return read(data) if is_quick(data) else await service.read_large(read, data)


def decode_fields(
    data: bytes, shape: type[msgspec.Struct], settings: ServerSettings
) -> tuple[dict[str, Any], list[str]]:
    """The fields of ``shape`` that are set, and the names that nobody documents."""
    body = decode_object(data, settings.max_json_values)
    return set_fields(body, shape), unknown_fields(body, shape)
