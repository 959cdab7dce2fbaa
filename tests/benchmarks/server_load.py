"""Load on the HTTP server: many streams on a real model with a probe beside them, and the cost of a streamed token.

    python tests/benchmarks/server_load.py                # both parts
    python tests/benchmarks/server_load.py --part streams --streams 32 --max-tokens 48
    python tests/benchmarks/server_load.py --part tokens

`streams`: SmolLM2 on the torch backend in its deterministic mode. Every prompt is first answered alone; then all of
them stream at once while /health is asked every 5 ms. Each stream must end once, with the text it has alone.
`tokens`: the echo backend, so that only our own path costs: tokens per second, time to the first chunk, and CPU of the
server process per streamed token at 1, 16 and 64 streams. The client shares the machine; say how many cores there are.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
HEALTH_EVERY_S = 0.005
MAX_HEALTH_P99_S = 0.05
SUBJECTS = (
    "the sea", "a lighthouse", "tea", "bicycles", "the moon", "an old clock", "winter", "a library", "bread", "trains",
    "volcanoes", "a violin", "bees", "maps", "the desert", "chess", "glass", "a river", "kites", "owls", "salt",
    "paper", "a bridge", "clouds", "spices", "mirrors", "a garden", "whales", "ink", "thunder", "silk", "a compass",
)  # fmt: skip


@contextmanager
def server(*arguments: str) -> Iterator[tuple[int, int]]:
    """A running server: its port and its process id."""
    command = [sys.executable, "-m", "pocketllm", "serve", "--port", "0", "--log-level", "warning", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = 0
        for line in process.stdout:
            match = re.search(r"http://[^:]+:(\d+);", line)
            port = int(match.group(1)) if match else port
            if line.startswith("The model is loaded"):
                break
        asyncio.run(until_ready(port))
        yield port, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


async def until_ready(port: int) -> None:
    while (await request(port, "GET", "/ready"))[0] != 200:  # noqa: ASYNC110  # another process
        await asyncio.sleep(0.1)


async def request(port: int, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
    """One request on a connection of its own; reads to the end of the body."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(encode(method, path, body))
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        data = await reader.readexactly(int(length.group(1))) if length else await reader.read()
        return int(head.split(b" ", 2)[1]), data
    finally:
        writer.close()


def encode(method: str, path: str, body: dict[str, Any] | None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


async def stream(port: int, body: dict[str, Any]) -> tuple[str, list[str], float, int]:
    """(text, finish reasons, seconds to the first chunk with text, chunks with text) of one streamed completion."""
    reader, writer = await asyncio.open_connection(HOST, port)
    started_at = time.perf_counter()
    first_s, texts, reasons, done = 0.0, [], [], 0
    try:
        writer.write(encode("POST", "/v1/completions", {**body, "stream": True}))
        async for line in reader:
            if line.startswith(b"data: {"):
                payload = json.loads(line[6:])
                if "error" in payload:
                    raise AssertionError(payload["error"])
                choice = payload["choices"][0]
                if choice["text"]:
                    first_s = first_s or time.perf_counter() - started_at
                    texts.append(choice["text"])
                if choice["finish_reason"]:
                    reasons.append(choice["finish_reason"])
            elif line.startswith(b"data: [DONE]"):
                done += 1
    finally:
        writer.close()
    assert done == 1, "a stream did not end exactly once"
    return "".join(texts), reasons, first_s, len(texts)


async def probe(port: int, latencies: list[float]) -> None:
    """Ask /health over one kept connection until cancelled."""
    reader, writer = await asyncio.open_connection(HOST, port)
    question = f"GET /health HTTP/1.1\r\nhost: {HOST}\r\n\r\n".encode()
    try:
        while True:
            asked_at = time.perf_counter()
            writer.write(question)
            head = await reader.readuntil(b"\r\n\r\n")
            match = re.search(rb"content-length: (\d+)", head)
            assert match is not None
            await reader.readexactly(int(match.group(1)))
            latencies.append(time.perf_counter() - asked_at)
            await asyncio.sleep(HEALTH_EVERY_S)
    finally:
        writer.close()


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def measure_streams(num_streams: int, max_tokens: int) -> bool:
    bodies = [
        {"prompt": f"A short story about {SUBJECTS[i % len(SUBJECTS)]}, number {i}:", "max_tokens": max_tokens}
        for i in range(num_streams)
    ]
    options = ("--max-batch-size", str(num_streams), "--max-model-len", "2048")
    with server("--backend", "torch", "--backend-option", "deterministic=true", *options) as (port, _):

        async def run() -> bool:
            started_at = time.perf_counter()
            alone = [await stream(port, body) for body in bodies]
            alone_s = time.perf_counter() - started_at
            latencies: list[float] = []
            watcher = asyncio.create_task(probe(port, latencies))
            started_at = time.perf_counter()
            together = await asyncio.gather(*(stream(port, body) for body in bodies))
            together_s = time.perf_counter() - started_at
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
            same = sum(a[0] == b[0] and a[1] == b[1] for a, b in zip(alone, together, strict=True))
            ended = sum(len(each[1]) == 1 for each in together)
            p99 = quantile(latencies, 0.99)
            print(f"{num_streams} streams of at most {max_tokens} tokens, one after the other {alone_s:.1f} s, "
                  f"together {together_s:.1f} s")  # fmt: skip
            print(f"  ended once: {ended} of {num_streams}; same text as alone: {same} of {num_streams}")
            print(f"  /health meanwhile: {len(latencies)} asked, p50 {statistics.median(latencies) * 1e3:.1f} ms, "
                  f"p99 {p99 * 1e3:.1f} ms, max {max(latencies) * 1e3:.1f} ms")  # fmt: skip
            return same == ended == num_streams and p99 < MAX_HEALTH_P99_S

        return asyncio.run(run())


def cpu_seconds(pid: int) -> float:
    """User and system time of one process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_tokens(num_tokens: int) -> bool:
    prompt = " ".join(["word"] * num_tokens)
    for placement in ("thread", "child"):
        options = ("--backend", "echo", "--placement", placement, "--max-batch-size", "64")
        with server(*options, "--backend-option", "delay_s=0.005") as (port, pid):
            print(f"echo, {placement}, a step every 5 ms:")
            for num_streams in (1, 16, 64):

                async def run(num_streams: int = num_streams) -> None:
                    body = {"prompt": prompt, "max_tokens": num_tokens}
                    before, started_at = cpu_seconds(pid), time.perf_counter()
                    answers = await asyncio.gather(*(stream(port, body) for _ in range(num_streams)))
                    seconds, cpu_s = time.perf_counter() - started_at, cpu_seconds(pid) - before
                    total = num_tokens * num_streams
                    chunks = sum(answer[3] for answer in answers)
                    first = statistics.median(answer[2] for answer in answers)
                    rate, cost = total / seconds, cpu_s / total * 1e6
                    print(f"  {num_streams:3d} streams: {rate:7.0f} tokens/s, {cost:5.0f} us of CPU per token, "
                          f"{total / chunks:.2f} tokens per chunk, first chunk p50 {first * 1e3:.1f} ms")  # fmt: skip

                asyncio.run(run())
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("streams", "tokens", "all"), default="all")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=32)
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, client and server on the same machine")
    ok = True
    if arguments.part in ("streams", "all"):
        ok = measure_streams(arguments.streams, arguments.max_tokens)
    if arguments.part in ("tokens", "all"):
        measure_tokens(200)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
