"""Load on the HTTP server: many streams on a real model with a probe beside them, and the cost of a streamed token.

    python tests/benchmarks/server_load.py                # all parts
    python tests/benchmarks/server_load.py --part streams --streams 32 --max-tokens 48
    python tests/benchmarks/server_load.py --part tokens
    python tests/benchmarks/server_load.py --part profile

`streams`: SmolLM2 on the torch backend in its deterministic mode. Every prompt is first answered alone; then all of
them stream at once while /health is asked every 5 ms. Each stream must end once, with the text it has alone.
`tokens`: the echo backend, so that only our own path costs, beside the same program with a handler that sends
ready-made events (`_handler_only.py`), at 1, 16 and 64 streams: tokens per second, time to the first byte and to the
first text, CPU of the server's process per token and per chunk. Median and range of several runs. What the pipeline
adds is the difference between the two. The client shares the machine; say how many cores there are. On a busy machine
tokens merge, so that a chunk has several: a longer --step keeps chunks of one token comparable.
`profile`: the server's process under cProfile while it streams.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pstats
import re
import signal
import statistics
import subprocess
import sys
import tempfile
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


SERVE = ("-m", "pocketllm", "serve", "--port", "0", "--log-level", "warning")
ECHO = ("--backend", "echo", "--max-batch-size", "64")
HANDLER_ONLY = str(Path(__file__).with_name("_handler_only.py"))


def subjects_of_tokens(step_s: float) -> dict[str, tuple[str, ...]]:
    """What is measured: its title and the program."""
    every = f"a step every {step_s * 1e3:g} ms"
    step = ("--backend-option", f"delay_s={step_s}")
    return {
        f"handler only, {every}": (HANDLER_ONLY, "--delay", str(step_s)),
        f"echo in a child, {every}": (*SERVE, *ECHO, "--placement", "child", *step),
        f"echo in a thread, {every}": (*SERVE, *ECHO, "--placement", "thread", *step),
        "echo in a child, as fast as it can": (*SERVE, *ECHO, "--placement", "child"),
    }


@contextmanager
def server(*arguments: str) -> Iterator[tuple[int, int]]:
    """A server that Python runs with these arguments: its port and its process id."""
    with running([sys.executable, *arguments]) as found:
        yield found


@contextmanager
def running(command: list[str]) -> Iterator[tuple[int, int]]:
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
    with server(*SERVE, "--backend", "torch", "--backend-option", "deterministic=true", *options) as (port, _):

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
    """User and system time of one process, all its threads that still run, to the nanosecond."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1e9


async def timed_stream(port: int, body: dict[str, Any]) -> tuple[float, float, int]:
    """(seconds to the first byte, seconds to the first chunk with text, chunks); parses as little as it can, because it
    shares the machine with the server."""
    reader, writer = await asyncio.open_connection(HOST, port)
    started_at = time.perf_counter()
    try:
        writer.write(encode("POST", "/v1/completions", {**body, "stream": True}))
        data = await reader.read(65536)
        byte_s = chunk_s = time.perf_counter() - started_at
        while b'"text":"' not in data:
            data += await reader.read(65536)
            chunk_s = time.perf_counter() - started_at
        while b"data: [DONE]" not in data[-200:]:
            part = await reader.read(65536)
            assert part, "a stream did not end"
            data += part
        return byte_s, chunk_s, data.count(b'data: {"id"')
    finally:
        writer.close()


def measure_tokens(num_tokens: int, step_s: float, repeats: int) -> None:
    for title, launch in subjects_of_tokens(step_s).items():
        print(f"{title}:")
        with server(*launch) as (port, pid):
            for num_streams in (1, 16, 64):
                asyncio.run(_measure_streams_of(port, pid, num_streams, num_tokens, repeats))


async def _measure_streams_of(port: int, pid: int, num_streams: int, num_tokens: int, repeats: int) -> None:
    body = {"prompt": " ".join(["word"] * num_tokens), "max_tokens": num_tokens}
    rows = []
    for _ in range(repeats):
        before, started_at = cpu_seconds(pid), time.perf_counter()
        answers = await asyncio.gather(*(timed_stream(port, body) for _ in range(num_streams)))
        seconds, cpu_s = time.perf_counter() - started_at, cpu_seconds(pid) - before
        total, chunks = num_tokens * num_streams, sum(answer[2] for answer in answers)
        byte_s, chunk_s = (statistics.median(answer[i] for answer in answers) for i in (0, 1))
        rows.append(
            (total / seconds, byte_s * 1e3, chunk_s * 1e3, cpu_s / total * 1e6, cpu_s / chunks * 1e6, total / chunks)
        )
    shown = [f"{statistics.median(column):.{digits}f} [{min(column):.{digits}f}, {max(column):.{digits}f}]"
             for column, digits in zip(zip(*rows, strict=True), (0, 1, 1, 0, 0, 2), strict=True)]  # fmt: skip
    print(f"  {num_streams:2d} streams: {shown[0]} tokens/s; first byte {shown[1]} ms, first text {shown[2]} ms; CPU "
          f"{shown[3]} us a token, {shown[4]} us a chunk of {shown[5]} tokens", flush=True)  # fmt: skip


def profile_tokens(num_streams: int, num_tokens: int, step_s: float) -> None:
    """Where the server's process spends its time while it streams: the functions by their own time."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "profile")
        program = [sys.executable, "-m", "cProfile", "-o", path, "-m", "pocketllm", "serve", "--port", "0"]
        options = ("--log-level", "warning", *ECHO, "--placement", "child", "--backend-option", f"delay_s={step_s}")
        with running([*program, *options]) as (port, pid):
            asyncio.run(_measure_streams_of(port, pid, num_streams, num_tokens, 5))
        print(f"profile of the server's process at {num_streams} streams (the profiler itself about doubles the cost):")
        stats = pstats.Stats(path)
        rows = sorted(stats.stats.items(), key=lambda row: -row[1][2])  # type: ignore[attr-defined]  # not in typeshed
        for (file, line, function), (_, calls, own_s, total_s, _) in rows[:25]:
            where = f"{Path(file).parent.name}/{Path(file).name}:{line} {function}" if line else function
            print(f"  {own_s:7.3f} s own, {total_s:7.3f} s in all, {calls:8d} calls  {where}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("streams", "tokens", "profile", "all"), default="all")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=200, help="of each stream, in the parts tokens and profile")
    parser.add_argument("--step", type=float, default=0.005, help="seconds between tokens there")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} cores, client and server on the same machine")
    ok = True
    if arguments.part in ("streams", "all"):
        ok = measure_streams(arguments.streams, arguments.max_tokens)
    if arguments.part in ("tokens", "all"):
        measure_tokens(arguments.tokens, arguments.step, arguments.repeats)
    if arguments.part in ("profile", "all"):
        profile_tokens(64, arguments.tokens, arguments.step)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
