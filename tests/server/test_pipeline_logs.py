"""Lines that the text pipeline logs for a request, far from the task that reads it, carry the request's id too."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from pocketllm import async_llm
from pocketllm.async_llm import AsyncLLM
from pocketllm.checkpoint.tokenizer import Tokenizer
from pocketllm.engine.call import GenerateCall
from pocketllm.engine_args import EngineArgs
from pocketllm.hookspecs import hookimpl
from pocketllm.text.choice import ChoiceText
from pocketllm_server.routes import reader
from pocketllm_server.wire.decode import MAX_QUICK_BYTES, decode_object
from tests.host.sample_extensions import echo_with
from tests.server.http_app import COMPLETIONS
from tests.server.live import Live, live
from tests.server.test_logs import lines_of, logged


class Talkative:
    """An extension whose stage logs a line of its own."""

    class Stage:
        def feed(self, text: str) -> str:
            logging.getLogger("pocketllm.talkative").info("a piece went by")
            return text

        def finish(self) -> str:
            return ""

    @hookimpl(wrapper=True)
    def pocketllm_generate(self, call: GenerateCall) -> Generator[None, bool, bool]:
        call.add_text_stage(lambda index: self.Stage())
        return (yield)


@asynccontextmanager
async def serving(path: Path, **extensions: object) -> AsyncIterator[Live]:
    args = EngineArgs(model=str(path), backend="echo", placement="thread", max_batch_size=4)
    async with live(AsyncLLM(args, registry=echo_with(**extensions))) as server:
        yield server


async def ask(server: Live, names: list[str], **fields: Any) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
        requests = [
            client.post(COMPLETIONS, json={"prompt": f"for {name}", **fields}, headers={"x-request-id": name})
            for name in names
        ]
        await asyncio.gather(*requests)


async def test_a_stage_that_logs_names_its_request(toy_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with logged("info", "json", monkeypatch) as stream:
        async with serving(toy_path, talkative=Talkative()) as server:
            stream.truncate(0)  # what the first forward pass said
            stream.seek(0)
            await ask(server, ["one", "two", "three"], n=2)
    lines = [line for line in lines_of(stream) if line["logger"] == "pocketllm.talkative"]
    assert {line.get("request_id") for line in lines} == {"one", "two", "three"}


async def test_a_pipeline_that_fails_names_its_request(toy_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with logged("info", "json", monkeypatch) as stream:
        async with serving(toy_path) as server:
            with monkeypatch.context() as patch:
                patch.setattr(ChoiceText, "feed", lambda self, ids: 1 / 0)
                await ask(server, ["one", "two"], stream=True)
    lines = [line for line in lines_of(stream) if line["logger"] == "pocketllm.engine"]
    assert sorted(line.get("request_id", "none") for line in lines) == ["one", "two"]
    assert all("ZeroDivisionError" in line["traceback"] for line in lines)


async def test_a_prompt_that_is_prepared_in_a_thread(toy_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = Tokenizer.encode
    threads = set()

    def talking(self: Tokenizer, *args: Any, **options: Any) -> list[int]:
        threads.add(threading.current_thread().name.rpartition("_")[0])
        logging.getLogger("pocketllm.talkative").info("encoding")
        return encode(self, *args, **options)

    with logged("info", "json", monkeypatch) as stream:
        async with serving(toy_path) as server:
            monkeypatch.setattr(Tokenizer, "encode", talking)
            monkeypatch.setattr(async_llm, "MAX_INLINE_CHARS", 1)
            await ask(server, ["one", "two"], max_tokens=1)
            monkeypatch.undo()
    assert threads == {"pocketllm-prepare"}
    lines = [line for line in lines_of(stream) if line["logger"] == "pocketllm.talkative"]
    assert [line.get("request_id") for line in sorted(lines, key=str)] == ["one", "two"]


async def test_a_body_that_is_read_in_a_thread(toy_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def talking(data: bytes, max_values: int) -> dict[str, Any]:
        logging.getLogger("pocketllm.talkative").info(threading.current_thread().name)
        return decode_object(data, max_values)

    with logged("info", "json", monkeypatch) as stream:
        async with serving(toy_path) as server:
            monkeypatch.setattr(reader, "decode_object", talking)
            await ask(server, ["one"], unknown="x" * MAX_QUICK_BYTES, max_tokens=1)
            monkeypatch.undo()
    (line,) = (line for line in lines_of(stream) if line["logger"] == "pocketllm.talkative")
    assert line["message"].startswith("pocketllm-body")
    assert line["request_id"] == "one"
