"""Comments in silent streams: they come when nothing else does, between events, and change no answer."""

from __future__ import annotations

import asyncio
from typing import Any

from pocketllm_server.keep_alive import COMMENT, KeepAlive
from tests.server.fake_llm import FakeLLM, Script
from tests.server.http_app import CHAT, HELLO, client_of, events_of

START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}


def body(data: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def run(app: Any, interval_s: float, send: Any = None) -> bytes:
    sent: list[bytes] = []

    async def keep(message: Any) -> None:
        sent.append(message.get("body", b""))

    async def receive() -> Any:
        raise AssertionError("nothing is to be read")

    await KeepAlive(app, interval_s)({"type": "http"}, receive, send or keep)
    await asyncio.sleep(3 * interval_s)
    return b"".join(sent)


async def test_a_long_prefill_is_kept_alive() -> None:
    async with client_of(FakeLLM(Script(pause_s=0.1)), keep_alive_interval_s=0.02) as client:
        text = (await client.post(CHAT, json={**HELLO, "stream": True})).text
    first = text.index('"Hello"')
    assert ": keep-alive\n\n" in text[:first]
    without = text.replace(": keep-alive\n\n", "")
    said = "".join(event["choices"][0]["delta"].get("content", "") for event in events_of(without))
    assert said == "Hello, world!"
    assert text.endswith("data: [DONE]\n\n")


async def test_a_busy_stream_has_none() -> None:
    async with client_of(FakeLLM(Script(texts=("x",) * 30, pause_s=0.001)), keep_alive_interval_s=5) as client:
        text = (await client.post(CHAT, json={**HELLO, "stream": True})).text
    assert "keep-alive" not in text


async def test_an_interval_of_nothing_is_never() -> None:
    async with client_of(FakeLLM(Script(pause_s=0.05)), keep_alive_interval_s=0) as client:
        text = (await client.post(CHAT, json={**HELLO, "stream": True})).text
    assert "keep-alive" not in text


async def test_other_answers_are_left_alone() -> None:
    async with client_of(FakeLLM(Script(pause_s=0.05)), keep_alive_interval_s=0.01) as client:
        response = await client.post(CHAT, json=HELLO)
    assert "keep-alive" not in response.text
    assert response.json()["choices"][0]["message"]["content"] == "Hello, world!"


async def test_only_between_whole_events() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(body(b"data: {"))
        await asyncio.sleep(0.08)
        await send(body(b"}\n\n"))
        await asyncio.sleep(0.08)
        await send(body(b"data: [DONE]\n\n", more=False))

    data = await run(app, 0.02)
    assert data.startswith(b"data: {}\n\n" + COMMENT)
    assert data.endswith(COMMENT + b"data: [DONE]\n\n")


async def test_never_beside_another_send() -> None:
    """A reader that is slow to take one event is not given a second one."""
    sending = 0
    most = 0

    async def slow(message: Any) -> None:
        nonlocal sending, most
        sending += 1
        most = max(most, sending)
        await asyncio.sleep(0.05)
        sending -= 1

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        for _ in range(4):
            await send(body(b"data: x\n\n"))
            await asyncio.sleep(0.015)
        await send(body(b"data: [DONE]\n\n", more=False))

    await run(app, 0.01, slow)
    assert most == 1


async def test_nothing_is_left_behind_when_the_answer_fails() -> None:
    before = len(asyncio.all_tasks())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await asyncio.sleep(0.03)
        raise RuntimeError("broken")

    try:
        await run(app, 0.01)
    except RuntimeError:
        pass
    assert len(asyncio.all_tasks()) == before
