"""Logs: text or JSON, the request's id in every line of a request, and nothing that people wrote."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from pocketllm_server.logs import FIELDS, JsonLines, TextLines, configure_logging
from tests.server.fake_llm import FakeLLM, Script
from tests.server.http_app import CHAT, COMPLETIONS, HELLO, client_of

SECRET = "a7f3-my-diary"


@contextlib.contextmanager
def logged(level: str, log_format: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What the process would write to stderr; puts the logging of the tests back at the end."""
    root = logging.getLogger()
    handlers, old_level = root.handlers[:], root.level
    quiet = {name: logging.getLogger(name).level for name in ("asyncio", "hpack", "hypercorn")}
    stream = io.StringIO()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", stream)
            configure_logging(level, log_format)
        yield stream
    finally:
        root.handlers[:] = handlers
        root.setLevel(old_level)
        for name, value in quiet.items():
            logging.getLogger(name).setLevel(value)
        logging.captureWarnings(False)


def lines_of(stream: io.StringIO) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [line for line in lines if line["logger"].startswith("pocketllm")]  # the test's own client logs too


async def test_one_line_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    with logged("info", "json", monkeypatch) as stream:
        async with client_of(FakeLLM()) as client:
            await client.post(CHAT, json={**HELLO, "stream": True}, headers={"x-request-id": "one"})
            await client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": -1}, headers={"x-request-id": "two"})
            await client.delete("/v1/requests/nobody", headers={"x-request-id": "three"})
            for _ in range(3):
                await client.get("/health")
    lines = {line["request_id"]: line for line in lines_of(stream)}
    assert set(lines) == {"one", "two", "three"}  # probes are logged at debug alone
    one = lines["one"]
    assert (one["method"], one["route"], one["status"]) == ("POST", CHAT, 200)
    assert (one["prompt_tokens"] > 0, one["completion_tokens"], one["finish_reason"]) == (True, 5, "stop")
    assert 0 <= one["ttft_s"] <= one["duration_s"]
    assert (one["level"], one["logger"]) == ("info", "pocketllm_server.access")
    assert lines["two"]["status"] == 400
    assert "prompt_tokens" not in lines["two"]
    assert lines["three"]["route"] == "/v1/requests/{request_id}"


async def test_every_line_of_a_request_has_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a line from a task or a thread that the request started."""
    with logged("info", "json", monkeypatch) as stream:
        model = FakeLLM(Script(raise_after=1))
        async with client_of(model) as client:
            ids = [f"r{number}" for number in range(8)]
            await asyncio.gather(
                *(client.post(CHAT, json={**HELLO, "stream": True}, headers={"x-request-id": each}) for each in ids)
            )
            await client.post(CHAT, json=HELLO, headers={"x-request-id": "plain"})
    lines = lines_of(stream)
    for each in ids:
        mine = [line for line in lines if line.get("request_id") == each]
        assert sorted(line["level"] for line in mine) == ["error", "info"]
        assert any("a bug" in line.get("traceback", "") for line in mine)
    assert [line["level"] for line in lines if line.get("request_id") == "plain"] == ["warning", "info"]


async def test_what_people_wrote_is_in_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[tuple[str, Any]] = [
        (CHAT, {"messages": [{"role": "user", "content": SECRET}]}),
        (CHAT, {"messages": [{"role": "user", "content": SECRET}], "stream": True}),
        (CHAT, {"messages": SECRET}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "stop": {SECRET: SECRET}}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "user": SECRET, "metadata": {SECRET: SECRET}}),
        (COMPLETIONS, {"prompt": SECRET * 10_000}),
        (COMPLETIONS, {"prompt": SECRET, "temperature": SECRET}),
    ]
    for script in (Script(texts=(SECRET,)), Script(fail_after=0, texts=(SECRET,)), Script(raise_after=1)):
        with logged("debug", "text", monkeypatch) as stream:
            async with client_of(FakeLLM(script)) as client:
                for path, body in bodies:
                    await client.post(path, json=body, headers={"authorization": f"Bearer {SECRET}"})
        assert "POST" in stream.getvalue()
        assert SECRET not in stream.getvalue()


async def test_bodies_are_logged_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with logged("info", "json", monkeypatch) as stream:
        async with client_of(FakeLLM(), log_prompts=True) as client:
            await client.post(COMPLETIONS, json={"prompt": SECRET}, headers={"x-request-id": "one"})
            await client.post(COMPLETIONS, json={"prompt": "y" * 200_000})
    first, *rest = [line for line in lines_of(stream) if "body" in line]
    assert json.loads(first["body"]) == {"prompt": SECRET}
    assert first["request_id"] == "one"
    assert [(len(line["body"]), line["body_bytes"] > 200_000) for line in rest] == [(64 * 1024, True)]


async def test_the_access_log_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    with logged("debug", "json", monkeypatch) as stream:
        async with client_of(FakeLLM(), access_log=False) as client:
            await client.post(CHAT, json=HELLO)
    assert [line for line in lines_of(stream) if line["logger"] == "pocketllm_server.access"] == []


def record(message: str, *args: object, **attributes: Any) -> logging.LogRecord:
    made = logging.LogRecord("a.logger", logging.WARNING, __file__, 1, message, args, None)
    made.__dict__.update(attributes)
    return made


def test_a_text_line_tells_time_level_logger_and_request() -> None:
    line = TextLines().format(record("%s is late", "it", request_id="r1"))
    assert line.endswith("Z WARNING a.logger [r1]: it is late")
    assert TextLines().format(record("alone")).endswith("WARNING a.logger: alone")
    # Nobody writes a line of their own into the log.
    forged = TextLines().format(record("path /x\n2030-01-01 ERROR forged\r\n"))
    assert forged.count("\n") == 0
    assert "\\n2030" in forged


def test_text_lines_keep_tracebacks_readable() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        made = record("failed")
        made.exc_info = sys.exc_info()
    assert TextLines().format(made).splitlines()[-1] == "ValueError: why"
    assert json.loads(JsonLines().format(made))["traceback"].endswith("ValueError: why")


@pytest.mark.parametrize("odd", [object(), {1, 2}, "\ud800", "new\nline", float("nan")])
def test_json_lines_are_always_one_json_line(odd: object) -> None:
    line = JsonLines().format(record("message %s", odd, **{FIELDS: {"odd": odd}}))
    assert "\n" not in line
    assert "odd" in json.loads(line)


def test_records_below_the_level_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with logged("warning", "text", monkeypatch) as stream:
        logging.getLogger("x").info("not this")
        logging.getLogger("x").warning("this")
    assert stream.getvalue().count("\n") == 1
    with logged("debug", "text", monkeypatch) as stream:
        logging.getLogger("asyncio").debug("whole callbacks, arguments included")
    assert stream.getvalue() == ""
