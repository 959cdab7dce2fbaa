"""A client of streamed completions that takes as little of the machine as it can: it shares the cores with the server.

One thread, one epoll, a connection per stream that is kept between requests. What it costs is measured and printed with
the rest; asyncio's streams took four times as much.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Sequence

_EVENT = b"data: "
_CHUNKED_END = b"\r\n0\r\n\r\n"


def completion_body(prompt: Sequence[int], max_tokens: int) -> bytes:
    """Both servers take this: greedy, streamed, and of exactly that many tokens."""
    request = {"model": "m", "prompt": list(prompt), "max_tokens": max_tokens, "temperature": 0, "stream": True}
    return json.dumps({**request, "ignore_eos": True}).encode()


class _Connection:
    """One stream at a time."""

    def __init__(self, port: int, poll: select.epoll) -> None:
        self._port = port
        self._poll = poll
        self._message = b""
        self._start = 0.0
        self._tail = b""
        self._is_fresh = False
        self.moments: list[float] = []
        self._connect()

    def _connect(self) -> None:
        self._socket = socket.create_connection(("127.0.0.1", self._port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._poll.register(self._socket.fileno(), select.EPOLLIN)
        self._is_fresh = True

    def fileno(self) -> int:
        return self._socket.fileno()

    def ask(self, body: bytes) -> None:
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        self._message = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        self._send()

    def _send(self) -> None:
        self._start = time.perf_counter()
        self._tail = b""
        self.moments = []
        self._socket.sendall(self._message)

    def ask_again(self) -> None:
        """On a new connection: the server has ended the kept one, as it may between two requests."""
        if self._tail or self._is_fresh:
            raise SystemExit(f"port {self._port}: the connection ended after {self._tail!r}")
        self._socket.close()
        self._connect()
        self._send()

    def read(self) -> bool:
        """Take what has arrived; True at the end of the answer, which has left the moments of its events."""
        try:
            data = self._socket.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            self.ask_again()
            return False
        now = time.perf_counter() - self._start
        if not self._tail and not data.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"port {self._port}: {data[:300]!r}")
        # An event's mark may be cut in two; a whole one does not fit into what is kept of the last read.
        self.moments += [now] * (self._tail[1 - len(_EVENT) :] + data).count(_EVENT)
        self._tail = (self._tail + data)[-64:]
        if not self._tail.endswith(_CHUNKED_END):
            return False
        if b"[DONE]" not in self._tail:
            raise SystemExit(f"port {self._port}: the stream ended with {self._tail!r}")
        self._is_fresh = False
        self.moments.pop()  # [DONE] is no token
        return True

    def close(self) -> None:
        self._socket.close()


def read_streams(port: int, bodies: Sequence[bytes], num_streams: int) -> list[list[float]]:
    """Send all requests, ``num_streams`` of them under way at any time; per answer the moments at which its events
    came, in seconds from its sending on."""
    waiting = list(bodies)
    answers: list[list[float]] = []
    with select.epoll() as poll:
        asking = [_Connection(port, poll) for _ in range(min(num_streams, len(waiting)))]
        for connection in asking:
            connection.ask(waiting.pop())
        while asking:
            ready = {number for number, _ in poll.poll()}
            for connection in [each for each in asking if each.fileno() in ready]:
                if not connection.read():
                    continue
                answers.append(connection.moments)
                if waiting:
                    connection.ask(waiting.pop())
                else:
                    connection.close()
                    asking.remove(connection)
    return answers
