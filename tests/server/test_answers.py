"""The answering path below its endpoints: what becomes of a generation that is left, and how calls are numbered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message

from pocketllm.types import GenerationRequest
from pocketllm_server.answers.answer import Answer
from pocketllm_server.answers.chat import ChatReply
from pocketllm_server.answers.generation import Generation
from pocketllm_server.answers.reading import Reading
from pocketllm_server.answers.tool_calls import CallNumbers
from pocketllm_server.config.settings import ServerSettings
from pocketllm_server.models.model import Model
from pocketllm_server.models.models import Models
from pocketllm_server.service import Service
from pocketllm_server.transport.http_io import ClientGoneError
from tests.server.fake_llm import FakeLLM, Script
from tests.server.http_app import until


async def test_what_becomes_of_a_generation_that_is_left_is_a_policy() -> None:
    client = FakeLLM(Script(endless=True, pause_s=0.001))
    await client.start()
    model = Model(client, "tiny")
    inbox: asyncio.Queue[Message] = asyncio.Queue()
    sent: list[Message] = []
    kept: list[Generation] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def keep(generation: Generation) -> None:
        kept.append(generation)

    reading = Reading({"stream": True}, model, [GenerationRequest(prompt="x", request_id="mine")], [])
    answer = Answer(Service(Models([model]), ServerSettings()), reading, ChatReply, leaving=keep)
    task = asyncio.create_task(answer({"type": "http"}, inbox.get, send))
    await until(lambda: len(sent) > 3)
    inbox.put_nowait({"type": "http.disconnect"})
    with pytest.raises(ClientGoneError):
        await task
    assert (len(model.active), client.left) == (1, []), "it runs on, and can be cancelled by its name"
    await kept[0].close()
    assert (len(model.active), client.left) == (0, ["mine"])


def call(name: str, **more: Any) -> dict[str, Any]:
    return {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": "{}"}, **more}


def test_calls_that_a_backend_brought_are_numbered_in_turn() -> None:
    numbers = CallNumbers()
    first = numbers.pieces([call("a", extra=1), call("b")])
    second = numbers.pieces([call("c")])
    assert [piece.number for piece in first + second] == [0, 1, 2]
    assert first[0].as_dict() == {"index": 0, **call("a", extra=1)}
    assert (second[0].id, second[0].name, second[0].arguments) == ("call_c", "c", "{}")


def test_pieces_that_core_numbered_keep_their_number() -> None:
    numbers = CallNumbers()
    deltas: list[dict[str, Any]] = [
        {"index": 0, **call("a")},
        {"index": 0, "function": {"arguments": "1"}},
        {"index": 1, **call("b")},
    ]
    pieces = numbers.pieces(deltas)
    assert [piece.number for piece in pieces] == [0, 0, 1]
    assert [piece.as_dict() for piece in pieces] == deltas
    assert (pieces[1].id, pieces[1].name, pieces[1].arguments) == (None, "", "1")
    assert numbers.pieces([call("c")])[0].number == 2
