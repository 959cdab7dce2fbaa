"""What goes over the wire in a streamed answer, byte for byte, in every version and over kept connections."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pocketllm_server.transport.http_chunks import ChunkWriter
from tests.server.fake_llm import FakeLLM, Script
from tests.server.http_app import COMPLETIONS, events_of
from tests.server.live import live, post, read_response

BODY = json.dumps({"prompt": "x", "stream": True}).encode()


async def read_chunked(reader: asyncio.StreamReader) -> tuple[bytes, list[bytes]]:
    head = await reader.readuntil(b"\r\n\r\n")
    chunks = []
    while True:
        size = int(await reader.readuntil(b"\r\n"), 16)
        data = await reader.readexactly(size + 2)
        assert data.endswith(b"\r\n")
        if not size:
            return head, chunks
        chunks.append(data[:-2])


async def test_chunks_are_framed_and_the_connection_lives_on() -> None:
    model = FakeLLM(Script(texts=("雨", "a" * 70_000, "", "end")))
    async with live(model) as server:
        reader, writer = await server.connect()
        for _ in range(3):
            writer.write(post(COMPLETIONS, BODY))
            head, chunks = await asyncio.wait_for(read_chunked(reader), 5)
            assert head.startswith(b"HTTP/1.1 200 ")
            assert head.lower().count(b"transfer-encoding: chunked") == 1
            events = events_of(b"".join(chunks).decode())
            assert "".join(event["choices"][0]["text"] for event in events) == "雨" + "a" * 70_000 + "end"
            assert all(chunk.endswith(b"\n\n") for chunk in chunks)  # each event whole, in one chunk
            writer.write(post(COMPLETIONS, b'{"prompt": "x"}'))  # an answer of known length in between
            assert (await asyncio.wait_for(read_response(reader), 5))[0] == 200
        writer.close()


async def test_chunks_in_the_middle_go_the_direct_way(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bool] = []
    write = ChunkWriter.write

    def spy(self: ChunkWriter, data: bytes) -> bool:
        sent.append(write(self, data))
        return sent[-1]

    monkeypatch.setattr(ChunkWriter, "write", spy)
    async with live(FakeLLM(Script(texts=("x",) * 20))) as server:
        reader, writer = await server.connect()
        writer.write(post(COMPLETIONS, BODY))
        await asyncio.wait_for(read_chunked(reader), 5)
        writer.close()
    assert sent == [True] * 21  # 20 tokens and the end; [DONE] ends the body, which is a message


class FakeTransport(asyncio.WriteTransport):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.num_waiting = 0
        self.closing = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return self.num_waiting


def test_the_direct_way_is_for_answers_under_way_and_readers_that_keep_up() -> None:
    transport = FakeTransport()
    chunks = ChunkWriter(transport)
    assert not chunks.write(b"before the head")
    chunks.is_streaming = True
    assert chunks.write(b"abc")
    transport.num_waiting = 1
    assert not chunks.write(b"for a reader that is behind")
    transport.num_waiting, transport.closing = 0, True
    assert chunks.write(b"for nobody")
    assert transport.written == [b"3\r\nabc\r\n"]


async def test_two_requests_sent_at_once_are_answered_one_after_the_other() -> None:
    async with live(FakeLLM()) as server:
        reader, writer = await server.connect()
        writer.write(post(COMPLETIONS, BODY) * 2)
        for _ in range(2):
            _, chunks = await asyncio.wait_for(read_chunked(reader), 5)
            assert chunks[-1].endswith(b"data: [DONE]\n\n")
        writer.close()


async def test_the_oldest_version_has_no_framing() -> None:
    async with live(FakeLLM()) as server:
        reader, writer = await server.connect()
        writer.write(post(COMPLETIONS, BODY).replace(b"HTTP/1.1", b"HTTP/1.0"))
        answer = await asyncio.wait_for(reader.read(), 5)
        _, _, body = answer.partition(b"\r\n\r\n")
        assert events_of(body.decode())[-1]["choices"][0]["finish_reason"] == "stop"
        writer.close()


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/no/such"])
async def test_a_head_request_has_no_body(path: str) -> None:
    async with live(FakeLLM()) as server:
        reader, writer = await server.connect()
        writer.write(f"HEAD {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer.endswith(b"\r\n\r\n")
        assert answer.count(b"\r\n\r\n") == 1
        writer.close()
