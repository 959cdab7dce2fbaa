"""Load a server with clients of every kind and check that it gives back everything it took.

    python tests/soak/server.py                    # 20,000 requests over 64 connections
    python tests/soak/server.py --seconds 300      # by the clock

Two thirds of the requests are ordinary, plain and streamed, on both endpoints. The others are cancelled by name,
dropped in the middle, malformed in every way there is, or stalled: a reader that stops reading, a body that stops
coming. No answer may be a 5xx, and every stream that is read must end exactly once. After a pause without load, what
the server and its child hold (descriptors, threads, tasks, slots, active requests) must be what it was before, and
their memory within 5 % of what it was after warming up. After SIGTERM no process may be left. Talks to this machine's
loopback address alone; Linux only, for /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SETTLE_S = 20.0
CANCEL_AFTER_CHUNKS = 3
STALL_TIMEOUT_S = 1.0
# A reader that stops has to leave more unread than the system's buffers hold.
SMALL_BUFFER_BYTES = 4096
LONG_ANSWER: dict[str, Any] = {"prompt": "word " * 700, "max_tokens": 700, "logprobs": 20, "n": 2, "temperature": 0}
GAUGES = ("requests_active", "requests_running", "requests_waiting", "slots_free", "queue_requests", "event_loop_tasks")


@dataclass(frozen=True)
class Holdings:
    """What a process and its descendants hold."""

    num_processes: int
    num_descriptors: int
    num_threads: int
    resident_bytes: int
    resident_mib: tuple[int, ...]
    """Of each process, for whoever looks for a leak."""


def _descendants(root: int) -> list[int]:
    """The process and everything below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The name, in parentheses, may hold anything: the fields begin after the last one.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        process = waiting.pop()
        found.append(process)
        waiting += children.get(process, [])
    return found


def _holdings(root: int) -> Holdings:
    processes = _descendants(root)
    descriptors = threads = 0
    resident = []
    for process in processes:
        descriptors += len(os.listdir(f"/proc/{process}/fd"))
        threads += len(os.listdir(f"/proc/{process}/task"))
        resident.append(int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    return Holdings(len(processes), descriptors, threads, sum(resident), tuple(each >> 20 for each in resident))


class Client:
    """One connection to the server, HTTP/1.1 with our own hands, so that it can be dropped at any byte."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self, method: str, path: str, body: dict[str, Any] | None = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        await self.send(head(method, path, len(data)) + data)

    async def send(self, data: bytes, *, buffer_bytes: int | None = None) -> None:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if buffer_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, (HOST, self._port))
        self._reader, self._writer = await asyncio.open_connection(sock=connection)
        self._writer.write(data)
        await self._writer.drain()

    async def status(self) -> int | None:
        """None: the server closed without an answer."""
        line = await self._reader.readline()
        return int(line.split()[1]) if line else None

    async def rest(self) -> bytes:
        return await self._reader.read()

    async def chunks(self, count: int) -> bytes:
        """Read until ``count`` events have arrived, or the answer ends."""
        data = b""
        while data.count(b"data: ") < count:
            part = await self._reader.read(4096)
            if not part:
                break
            data += part
        return data

    async def close(self, *, reset: bool = False) -> None:
        if reset:
            self._writer.transport.abort()
        else:
            self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            pass  # the server may have been first


def head(method: str, path: str, length: int, more: str = "Content-Type: application/json\r\n") -> bytes:
    lines = f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n{more}Content-Length: {length}\r\n\r\n"
    return lines.encode()


async def _answer(port: int, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int | None, bytes]:
    client = Client(port)
    await client.open(method, path, body)
    try:
        return await client.status(), await client.rest()
    finally:
        await client.close()


def _text(number: int) -> str:
    words = " ".join(random.choice(("tree", "river", "stone", "cloud", "ärgerlich", "雨", "👍🏽")) for _ in range(40))
    return f"{number}: {words}"


def _request(number: int, *, stream: bool) -> tuple[str, dict[str, Any]]:
    """A path and a body for it, one of many ordinary ones."""
    body: dict[str, Any] = {"max_tokens": random.randrange(1, 120), "stream": stream}
    body |= random.choice(({}, {"stop": ["cloud"]}, {"n": 2, "temperature": 1, "seed": number}, {"logprobs": True}))
    if random.random() < 0.7:
        return CHAT, {**body, "messages": [{"role": "user", "content": _text(number)}]}
    if "logprobs" in body:
        body["logprobs"] = 2
    return COMPLETIONS, {**body, "prompt": random.choice((_text(number), [_text(number), "and another"]))}


def _check_stream(body: dict[str, Any], data: bytes) -> None:
    """Each choice ends once, and so does the stream, with its last event."""
    events = [line[6:] for line in re.findall(rb"^data: .*$", data.replace(b"\r", b""), re.MULTILINE)]
    assert events.count(b"[DONE]") == 1, data[-300:]
    assert events[-1] == b"[DONE]", data[-300:]
    ends: Counter[int] = Counter()
    for event in map(json.loads, events[:-1]):
        assert "error" not in event, event
        ends.update(choice["index"] for choice in event["choices"] if choice["finish_reason"])
    prompts = body.get("prompt")
    num_choices = body.get("n", 1) * (len(prompts) if isinstance(prompts, list) else 1)
    assert ends == Counter(range(num_choices)), (ends, data[-300:])


async def _plain(port: int, number: int) -> None:
    path, body = _request(number, stream=False)
    status, data = await _answer(port, "POST", path, body)
    assert status == 200, (status, data)


async def _streamed(port: int, number: int) -> None:
    path, body = _request(number, stream=True)
    status, data = await _answer(port, "POST", path, body)
    assert status == 200, (status, data)
    _check_stream(body, _dechunked(data))


async def _dropped(port: int, number: int) -> None:
    client = Client(port)
    await client.open("POST", *_request(number, stream=random.random() < 0.7))
    if random.random() < 0.7:
        await client.chunks(random.randrange(CANCEL_AFTER_CHUNKS))
    await client.close(reset=random.random() < 0.5)


async def _cancelled(port: int, number: int) -> None:
    name = f"soak-{number}"
    path, body = _request(number, stream=True)
    client = Client(port)
    await client.open("POST", path, {**body, "request_id": name})
    status = await client.status()
    data = await client.chunks(CANCEL_AFTER_CHUNKS)
    answered, _ = await _answer(port, "DELETE", f"/v1/requests/{name}")
    data += await client.rest()
    await client.close()
    assert status == 200, (status, data)
    assert answered in (200, 404), answered  # 404: it was over before the DELETE arrived
    _check_stream(body, _dechunked(data))


async def _malformed(port: int, number: int) -> None:
    """None of these is a request that the server could answer with 200; none may be its fault."""
    path, body = _request(number, stream=False)
    data = json.dumps(body).encode()
    wrong: dict[str, Any] = random.choice(
        ({"max_tokens": -number}, {"messages": "no list"}, {"prompt": {}}, {"temperature": "hot"})
    )
    bad = json.dumps({"messages": 1, "prompt": {}, **wrong}).encode()
    raw = random.choice(
        (
            head("POST", path, len(bad)) + bad,
            head("POST", path, len(data) - 9) + data[:-9],
            head("POST", path, len(data), "Content-Type: text/plain\r\n") + data,
            head("POST", "/v1/nowhere", len(data)) + data,
            head("PATCH", path, len(data)) + data,
            head("GET", "/v1/models", 0, f"Cookie: {'x' * 20_000}\r\n"),
            head("POST", path, 30_000_000) + data,
            bytes(random.randrange(256) for _ in range(200)) + b"\r\n\r\n",
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        )
    )
    client = Client(port)
    await client.send(raw)
    try:
        status = await client.status()
        assert status is None or 400 <= status < 500, (status, raw[:200])
        await client.rest()
    except ConnectionError:
        pass  # closed while we were still sending
    await client.close()


async def _stalled(port: int, number: int) -> None:
    """A body that stops coming, or a reader that stops reading, until the server has had enough."""
    if random.random() < 0.5:
        await _stalled_reader(port)
        return
    client = Client(port)
    await client.send(head("POST", CHAT, 1000) + b'{"messages": [')
    assert await client.status() == 408
    await client.close(reset=True)


async def _stalled_reader(port: int) -> None:
    client = Client(port)
    data = json.dumps({**LONG_ANSWER, "stream": True}).encode()
    await client.send(head("POST", COMPLETIONS, len(data)) + data, buffer_bytes=SMALL_BUFFER_BYTES)
    assert await client.status() == 200
    await asyncio.sleep(random.uniform(0.5, 2.0) * STALL_TIMEOUT_S)
    await client.close(reset=True)


def _dechunked(data: bytes) -> bytes:
    """The body of a chunked answer whose status line was read."""
    _, _, rest = data.partition(b"\r\n\r\n") if not data.startswith(b"\r\n") else (b"", b"", data[2:])
    parts = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        parts.append(rest[:length])
        rest = rest[length + 2 :]
        if length == 0:
            break
    return b"".join(parts)


# A third of the requests come to a bad end. Stalls last seconds, so there are few of them.
KINDS = [*[_plain] * 24, *[_streamed] * 42, *[_dropped] * 13, *[_cancelled] * 10, *[_malformed] * 10, _stalled]


async def _load(
    port: int, goes_on: Callable[[int], bool], num_connections: int, numbers: itertools.count[int]
) -> Counter[str]:
    """Run clients for as long as ``goes_on`` says of the number of those started; gives how often each kind ran."""
    done: Counter[str] = Counter()
    num_started = 0

    async def client() -> None:
        nonlocal num_started
        while goes_on(num_started):
            num_started += 1
            kind = random.choice(KINDS)
            await asyncio.wait_for(kind(port, next(numbers)), timeout=60)
            done[kind.__name__.strip("_")] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(num_connections):
            group.create_task(client())
    return done


async def _metrics(port: int) -> dict[str, float]:
    _, data = await _answer(port, "GET", "/metrics")
    lines = (line for line in data.decode().splitlines() if line.startswith("pocketllm_"))
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


async def _gauges(port: int) -> dict[str, float]:
    samples = await _metrics(port)
    return {name: samples[f"pocketllm_{name}"] for name in GAUGES}


async def _settled(port: int, wanted: dict[str, float] | None) -> dict[str, float]:
    """The gauges once nothing runs and, where given, they are what is wanted; as they are when time is up."""
    until = time.monotonic() + SETTLE_S
    while True:
        gauges = await _gauges(port)
        if time.monotonic() > until or (not gauges["requests_active"] and wanted in (None, gauges)):
            return gauges
        await asyncio.sleep(0.2)


async def _until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(1200):
        assert process.poll() is None, "the server ended before it was ready"
        try:
            status, _ = await _answer(port, "GET", "/ready")
        except OSError:
            status = 0  # not listening yet
        if status == 200:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the server was not ready within two minutes")


async def _soak(process: subprocess.Popen[bytes], port: int, arguments: argparse.Namespace) -> None:
    await _until_ready(port, process)
    idle = await _settled(port, None)
    numbers = itertools.count()  # names of requests are made from them, and must not meet
    await _load(port, lambda started: started < arguments.warm_up, arguments.connections, numbers)
    warm = await _settled(port, idle)
    await asyncio.sleep(1.0)
    before = _holdings(process.pid)
    print(f"after warming up: {before} {warm}", flush=True)

    started_at = time.monotonic()
    if arguments.seconds is not None:
        done = await _load(
            port, lambda _: time.monotonic() < started_at + arguments.seconds, arguments.connections, numbers
        )
    else:
        done = await _load(port, lambda started: started < arguments.requests, arguments.connections, numbers)
    seconds = time.monotonic() - started_at

    gauges = await _settled(port, idle)
    await asyncio.sleep(1.0)
    after = _holdings(process.pid)
    print(f"after {done.total()} requests in {seconds:.0f} s {dict(done)}: {after} {gauges}", flush=True)
    growth = after.resident_bytes / before.resident_bytes - 1
    print(
        f"memory: {before.resident_bytes >> 20} MiB, then {after.resident_bytes >> 20} MiB, {growth:+.1%}", flush=True
    )
    assert gauges == idle, f"not what it was before: {idle}"
    failed = {name: n for name, n in (await _metrics(port)).items() if re.search(r'requests_total.*status="5', name)}
    # Answered 503 before the model was loaded, if at all.
    assert all('route="/ready"' in name for name in failed), failed
    assert after.num_processes == before.num_processes
    assert after.num_descriptors <= before.num_descriptors, "descriptors were not given back"
    assert after.num_threads <= before.num_threads, "threads were not given back"
    assert growth <= arguments.max_growth, f"memory grew by {growth:.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Load a server and check that it gives everything back.")
    parser.add_argument("--requests", type=int, default=20_000, help="how many after warming up")
    parser.add_argument("--seconds", type=float, help="how long after warming up, in place of how many")
    parser.add_argument("--warm-up", type=int, default=4_000, help="how many before anything is measured")
    parser.add_argument("--connections", type=int, default=64, help="how many clients there are at a time")
    parser.add_argument("--max-growth", type=float, default=0.05, help="share by which memory may grow")
    parser.add_argument("--backend", default="echo")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--random-seed", type=int, default=0)
    arguments = parser.parse_args()
    random.seed(arguments.random_seed)
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "pocketllm", "serve", "--host", HOST, "--port", str(port)]
    command += ["--backend", arguments.backend, "--model", arguments.model, "--log-level", "warning"]
    command += ["--body-timeout", str(STALL_TIMEOUT_S), "--send-timeout", str(STALL_TIMEOUT_S)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        processes: list[int] = []
        try:
            asyncio.run(_soak(process, port, arguments))
            processes = _descendants(process.pid)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0, "the server did not end well"
            left = [number for number in processes if Path(f"/proc/{number}").exists()]
            assert left == [], f"processes were left behind: {left}"
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read().decode(errors="replace")[-4000:])
            raise
        finally:
            process.kill()
            process.wait()
    print("everything was given back")


if __name__ == "__main__":
    main()
