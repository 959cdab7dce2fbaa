"""The routes that generate: read, take a place in the model's queue, answer."""

from __future__ import annotations

import logging

from starlette.types import Receive, Scope, Send

from pocketllm.errors import PocketLLMError
from pocketllm_server.answers.answer import Answer
from pocketllm_server.answers.reply import Reply
from pocketllm_server.routes.reader import Dialect, Reader
from pocketllm_server.service import Service
from pocketllm_server.wire.ignored_fields import ignored_fields_header

logger = logging.getLogger(__name__)


class Generate:
    """An ASGI application: requests come in the words of ``dialect`` and are answered by a ``reply``."""

    def __init__(self, service: Service, dialect: Dialect, reply: type[Reply]) -> None:
        self._service = service
        self._dialect = dialect
        self._reader = Reader(service, dialect)
        self._reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._service.models.check_room()
        reading = await self._reader.read(scope, receive)
        if reading.ignored:
            names = ignored_fields_header(reading.ignored)[0][1].decode()
            logger.info("request %s: ignored fields: %s", reading.requests[0].request_id, names)
        with reading.model.queue.place():
            try:
                await Answer(self._service, reading, self._reply)(scope, receive, send)
            except PocketLLMError as error:
                raise self._dialect.in_its_words(error) from None
