"""Load a server for a while and check that it gives back everything it took.

    python tests/soak/server.py --seconds 300

Clients come and go in every way there is: plain answers, streams read to the end, connections closed in the middle,
requests cancelled by name, bodies that are refused. After a pause without load, what the server and its child hold
(open descriptors, threads, active requests) must be what it was after warming up, and their memory within a bound of
it. After SIGTERM no process may be left. Talks to this machine's loopback address alone; Linux only, for /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
WARM_UP_S = 10.0
SETTLE_S = 3.0
MAX_GROWTH_BYTES = 48 << 20
CANCEL_AFTER_CHUNKS = 3


@dataclass(frozen=True)
class Holdings:
    """What a process and its descendants hold."""

    num_processes: int
    num_descriptors: int
    num_threads: int
    resident_bytes: int


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
    descriptors = threads = resident = 0
    for process in processes:
        descriptors += len(os.listdir(f"/proc/{process}/fd"))
        threads += len(os.listdir(f"/proc/{process}/task"))
        resident += int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return Holdings(len(processes), descriptors, threads, resident)


class Client:
    """One connection to the server, HTTP/1.1 with our own hands, so that it can be dropped at any byte."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self, method: str, path: str, body: dict[str, Any] | None = None) -> None:
        self._reader, self._writer = await asyncio.open_connection(HOST, self._port)
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        self._writer.write(head.encode() + data)
        await self._writer.drain()

    async def status(self) -> int:
        line = await self._reader.readline()
        return int(line.split()[1])

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

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except ConnectionError:
            pass  # the server may have been first


async def _answer(port: int, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
    client = Client(port)
    await client.open(method, path, body)
    try:
        return await client.status(), await client.rest()
    finally:
        await client.close()


def _body(number: int, *, stream: bool) -> dict[str, Any]:
    words = " ".join(random.choice(("tree", "river", "stone", "cloud", "ärgerlich", "雨")) for _ in range(40))
    return {
        "messages": [{"role": "user", "content": f"{number}: {words}"}],
        "max_tokens": random.randrange(1, 120),
        "stream": stream,
    }


async def _plain(port: int, number: int) -> None:
    status, _ = await _answer(port, "POST", "/v1/chat/completions", _body(number, stream=False))
    assert status == 200, status


async def _streamed(port: int, number: int) -> None:
    status, data = await _answer(port, "POST", "/v1/chat/completions", _body(number, stream=True))
    assert (status, b"[DONE]" in data) == (200, True), (status, data[-200:])


async def _dropped(port: int, number: int) -> None:
    client = Client(port)
    await client.open("POST", "/v1/chat/completions", _body(number, stream=random.random() < 0.7))
    if random.random() < 0.7:
        await client.chunks(random.randrange(CANCEL_AFTER_CHUNKS))
    await client.close()


async def _cancelled(port: int, number: int) -> None:
    name = f"soak-{number}"
    client = Client(port)
    await client.open("POST", "/v1/chat/completions", {**_body(number, stream=True), "request_id": name})
    status = await client.status()
    await client.chunks(CANCEL_AFTER_CHUNKS)
    answered, _ = await _answer(port, "DELETE", f"/v1/requests/{name}")
    data = await client.rest()
    await client.close()
    assert status == 200, status
    assert answered in (200, 404), answered  # 404: it was over before the DELETE arrived
    assert answered == 404 or b"[DONE]" in data, data[-200:]


async def _refused(port: int, number: int) -> None:
    wrong = random.choice(({"max_tokens": -number}, {"messages": "no list"}, {"temperature": "hot"}))
    status, data = await _answer(port, "POST", "/v1/chat/completions", {**_body(number, stream=False), **wrong})
    assert (status, "error" in json.loads(data.partition(b"\r\n\r\n")[2])) == (400, True), (status, data)


async def _load(port: int, seconds: float, num_clients: int) -> Counter[str]:
    """Run clients until the time is up; gives how often each kind ran."""
    kinds = (_plain, _streamed, _dropped, _dropped, _cancelled, _refused)
    done: Counter[str] = Counter()
    numbers = itertools.count()  # names of requests are made from them, and must not meet
    until = time.monotonic() + seconds

    async def client() -> None:
        while time.monotonic() < until:
            kind = random.choice(kinds)
            await asyncio.wait_for(kind(port, next(numbers)), timeout=60)
            done[kind.__name__.strip("_")] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(num_clients):
            group.create_task(client())
    return done


def _num_active(metrics: str) -> float:
    (line,) = (line for line in metrics.splitlines() if line.startswith("pocketllm_requests_active"))
    return float(line.rsplit(" ", 1)[1])


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


async def _soak(process: subprocess.Popen[bytes], port: int, seconds: float, num_clients: int) -> None:
    await _until_ready(port, process)
    await _load(port, WARM_UP_S, num_clients)
    await asyncio.sleep(SETTLE_S)
    before = _holdings(process.pid)
    print(f"after warming up: {before}", flush=True)
    done = await _load(port, seconds, num_clients)
    await asyncio.sleep(SETTLE_S)
    after = _holdings(process.pid)
    _, metrics = await _answer(port, "GET", "/metrics")
    print(f"after {done.total()} requests {dict(done)}: {after}", flush=True)
    assert _num_active(metrics.decode()) == 0, "requests are still active"
    assert after.num_processes == before.num_processes
    assert after.num_descriptors <= before.num_descriptors, "descriptors were not given back"
    assert after.num_threads <= before.num_threads, "threads were not given back"
    growth = after.resident_bytes - before.resident_bytes
    assert growth <= MAX_GROWTH_BYTES, f"memory grew by {growth >> 20} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description="Load a server and check that it gives everything back.")
    parser.add_argument("--seconds", type=float, default=300, help="how long the load lasts after warming up")
    parser.add_argument("--clients", type=int, default=16, help="how many clients there are at a time")
    parser.add_argument("--backend", default="echo")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--random-seed", type=int, default=0)
    arguments = parser.parse_args()
    random.seed(arguments.random_seed)
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "pocketllm", "serve", "--host", HOST, "--port", str(port)]
    command += ["--backend", arguments.backend, "--model", arguments.model]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        processes: list[int] = []
        try:
            asyncio.run(_soak(process, port, arguments.seconds, arguments.clients))
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
