"""How long /health takes while four clients send, one after the other, bodies made to be as dear as the limits allow.

    python tests/benchmarks/hostile_bodies.py             # every kind
    python tests/benchmarks/hostile_bodies.py deep schema

Each kind stays just under a limit of the server's defaults (values, lists and objects, depth, messages), or is as long
as a text can be before the context refuses it. The first row has no such clients: it is what the machine itself allows.
The clients and the probe are processes of their own, so that only the server's delay counts. Fails when the 99th
percentile is above 50 ms.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import sys
import time
from multiprocessing.synchronize import Event

from server_load import ECHO, HEALTH_EVERY_S, HOST, MAX_HEALTH_P99_S, SERVE, running

from pocketllm_server.config.settings import ServerSettings
from pocketllm_server.wire.decode import MAX_DEPTH, VALUES_PER_CONTAINER

NUM_VALUES = ServerSettings().max_json_values - 100
NUM_CONTAINERS = ServerSettings().max_json_values // VALUES_PER_CONTAINER - 100
NUM_CLIENTS = 4
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

Load = tuple[str, bytes] | None


def loads() -> dict[str, Load]:
    """The path and the body of each kind."""
    message = b'"messages":[{"role":"user","content":"Hi"}],"max_tokens":4'
    nested = b"[" * (MAX_DEPTH - 4) + b"]" * (MAX_DEPTH - 4)
    properties = b",".join(b'"k%d":{"type":"string"}' % index for index in range(NUM_CONTAINERS - 50))
    schema = b'{"type":"json_schema","json_schema":{"name":"a","schema":{"type":"object","properties":{%s}}}}'

    def unknown(values: list[bytes]) -> Load:
        return CHAT, b"{%s,%s}" % (message, b'"unknown":[' + b",".join(values) + b"]")

    return {
        "nothing": None,
        "lists": unknown([b"[]"] * NUM_CONTAINERS),
        "numbers": unknown([b"1"] * NUM_VALUES),
        "deep": unknown([nested] * (NUM_CONTAINERS // (MAX_DEPTH - 4))),
        "objects": unknown([b'{"k%d":1}' % index for index in range(NUM_CONTAINERS)]),
        "strings": unknown([b'"k%d"' % index for index in range(NUM_VALUES)]),
        "schema": (CHAT, b'{%s,"response_format":%s}' % (message, schema % properties)),
        "messages": (CHAT, b'{"messages":[%s]}' % b",".join([b'{"role":"user","content":"a"}'] * 2000)),
        "text": (CHAT, b'{"messages":[{"role":"user","content":"%s"}]}' % (b"a " * 2_000_000)),
        "tokens": (COMPLETIONS, b'{"prompt":[%s]}' % b",".join([b"101"] * NUM_VALUES)),
    }


def post(port: int, path: str, body: bytes) -> int:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((HOST, port)) as connection:
        connection.sendall(head.encode() + body)
        with connection.makefile("rb") as answer:
            status = int(answer.readline().split()[1])
            answer.read()
    return status


def keep_posting(
    port: int, path: str, body: bytes, stop: Event, answers: multiprocessing.Queue[dict[int, int]]
) -> None:
    counts: dict[int, int] = {}
    while not stop.is_set():
        status = post(port, path, body)
        counts[status] = counts.get(status, 0) + 1
    answers.put(counts)


def probe(port: int, seconds: float) -> list[float]:
    """Seconds that each /health took, sorted."""
    took: list[float] = []
    end = time.perf_counter() + seconds
    with socket.create_connection((HOST, port)) as connection, connection.makefile("rb") as answer:
        while time.perf_counter() < end:
            start = time.perf_counter()
            connection.sendall(f"GET /health HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            length = 0
            while (line := answer.readline()) != b"\r\n":
                name, _, value = line.lower().partition(b":")
                length = int(value) if name == b"content-length" else length
            answer.read(length)
            took.append(time.perf_counter() - start)
            time.sleep(HEALTH_EVERY_S)
    return sorted(took)


def measure(port: int, load: Load, seconds: float) -> tuple[list[float], dict[int, int]]:
    if load is None:
        return probe(port, seconds), {}
    stop = multiprocessing.Event()
    answers: multiprocessing.Queue[dict[int, int]] = multiprocessing.Queue()
    clients = [
        multiprocessing.Process(target=keep_posting, args=(port, *load, stop, answers)) for _ in range(NUM_CLIENTS)
    ]
    for client in clients:
        client.start()
    took = probe(port, seconds)
    stop.set()
    total: dict[int, int] = {}
    for _ in clients:
        for status, count in answers.get().items():
            total[status] = total.get(status, 0) + count
    for client in clients:
        client.join()
    return took, total


def main() -> int:
    kinds = loads()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(kinds)}; all when left out")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each kind")
    arguments = parser.parse_args()
    if unknown := set(arguments.kinds) - set(kinds):
        parser.error(f"there is no kind {' '.join(sorted(unknown))}: choose from {', '.join(kinds)}")
    print(f"{os.cpu_count()} cores, {NUM_CLIENTS} clients and the server on the same machine")
    ok = True
    with running([sys.executable, *SERVE, *ECHO, "--placement", "child"]) as (port, _):
        for kind in arguments.kinds or kinds:
            load = kinds[kind]
            took, statuses = measure(port, load, arguments.seconds)
            p50, p99 = took[len(took) // 2], took[int(len(took) * 0.99)]
            size = f"{len(load[1]) / 1e6:.2f} MB" if load else ""
            print(
                f"{kind:9s} {size:>8s}  answered {statuses}; /health {len(took)} asked, p50 {p50 * 1e3:.1f} ms, "
                f"p99 {p99 * 1e3:.1f} ms, max {took[-1] * 1e3:.1f} ms",
                flush=True,
            )
            ok = ok and p99 <= MAX_HEALTH_P99_S and all(status < 500 for status in statuses)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
