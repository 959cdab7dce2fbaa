"""Comments in silent streams, as clients see them; test_event_body.py has the moments."""

from __future__ import annotations

from tests.server.fake_llm import FakeLLM, Script
from tests.server.http_app import CHAT, HELLO, client_of, events_of


async def test_a_long_prefill_is_kept_alive() -> None:
    async with client_of(FakeLLM(Script(pause_s=0.1)), keep_alive_interval_s=0.02) as client:
        text = (await client.post(CHAT, json={**HELLO, "stream": True})).text
    first = text.index('"Hello"')
    assert ": keep-alive\n\n" in text[:first]
    without = text.replace(": keep-alive\n\n", "")
    said = "".join(event["choices"][0]["delta"].get("content", "") for event in events_of(without))
    assert said == "Hello, world!"
    assert text.endswith("data: [DONE]\n\n")


async def test_a_busy_stream_carries_no_keep_alive_comments() -> None:
    async with client_of(FakeLLM(Script(texts=("x",) * 30, pause_s=0.001)), keep_alive_interval_s=5) as client:
        text = (await client.post(CHAT, json={**HELLO, "stream": True})).text
    assert "keep-alive" not in text


async def test_an_interval_of_0_sends_no_keep_alive_comments() -> None:
    async with client_of(FakeLLM(Script(pause_s=0.05)), keep_alive_interval_s=0) as client:
        text = (await client.post(CHAT, json={**HELLO, "stream": True})).text
    assert "keep-alive" not in text


async def test_whole_answers_carry_no_keep_alive_comments() -> None:
    async with client_of(FakeLLM(Script(pause_s=0.05)), keep_alive_interval_s=0.01) as client:
        response = await client.post(CHAT, json=HELLO)
    assert "keep-alive" not in response.text
    assert response.json()["choices"][0]["message"]["content"] == "Hello, world!"
