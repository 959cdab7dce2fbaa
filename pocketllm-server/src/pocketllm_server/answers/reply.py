"""What an answer is, whichever endpoint it is for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pocketllm.types import GenerationResult, TokenEvent, Usage
from pocketllm_server.answers.generation import Generation
from pocketllm_server.config.settings import ServerSettings


class Reply(ABC):
    """One request's answer in the words of its endpoint: events in, bytes out. It sends nothing and waits for nothing.

    ::

                            ┌─► opening ─► take, take, … ─► end      the frames of a stream
        accepted: Reply() ──┤                  └─► fail ─────┘
                            └─► body                                 one JSON body

    A stream is opened once. ``take`` and ``fail`` may come for the choices of several prompts in any order: a prompt
    that fails does not end the others. After the last of them ``end`` is called once. Each returns whole frames, or
    nothing. ``body`` is called in place of all of these, once. :class:`pocketllm_server.answers.answer.Answer` calls.

    Args:
        generation: what was accepted; prompts are known and nothing was generated yet.
        fields: what the request set, by the names of this endpoint.
    """

    id_prefix: str
    """Of the response's id."""
    fault_code: str | None = None
    """The code of ``fail``'s error where the server itself has failed on an answer under way."""

    def __init__(self, generation: Generation, fields: Mapping[str, Any], settings: ServerSettings) -> None:
        self._generation = generation

    @abstractmethod
    def opening(self) -> bytes:
        """What precedes the first event of all choices."""

    @abstractmethod
    def take(self, index: int, event: TokenEvent) -> bytes:
        """What choice ``index`` of the whole answer gained, and its end, unless that is an error."""

    @abstractmethod
    def fail(self, error: Mapping[str, object]) -> bytes:
        """A choice or a prompt cannot go on. ``error`` has the keys of OpenAI's error object."""

    @abstractmethod
    def end(self, usage: Usage) -> bytes:
        """What follows the last event of all choices. ``usage`` is that of the prompts which got to their end."""

    @abstractmethod
    def body(self, results: Sequence[GenerationResult]) -> Any:
        """The whole answer, ready to encode; one result a prompt, in their order, without those that have none."""


def unfinished(event: TokenEvent) -> TokenEvent:
    """What ``event`` gained, without its finish reason: something else says how the choice ended."""
    return msgspec.structs.replace(event, finish_reason=None)
