"""``pocketllm serve`` as a process on a unix socket, for the pages that say how it behaves."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

CHAT = "/v1/chat/completions"


class Server:
    """A running server. ``folder`` holds its socket, ``stdout`` and ``stderr``."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.client = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(folder / "socket")), base_url="http://localhost", timeout=60
        )

    @property
    def stderr(self) -> str:
        return (self.folder / "stderr").read_text(encoding="utf-8")

    def until(self, condition: Callable[[], Any], seconds: float = 60) -> None:
        """Wait until ``condition`` is true; the server lives meanwhile."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            if condition():
                return
            time.sleep(0.01)
        raise AssertionError(f"nothing after {seconds} s, exit code {self.process.poll()}: {self.stderr}")

    def is_listening(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.folder / "socket")) == 0

    def until_ready(self) -> None:
        self.until(lambda: self.client.get("/ready").status_code == 200)

    def chat(self, text: str, **fields: Any) -> httpx.Response:
        return self.client.post(CHAT, json={"messages": [{"role": "user", "content": text}], **fields})

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)


@contextmanager
def server(*arguments: str, model: str = "smollm2", **environ: str) -> Iterator[Server]:
    """Serve, from when it listens until the block ends; the process is killed if it has not ended by then."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with open(folder / "stdout", "wb") as out, open(folder / "stderr", "wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "pocketllm", "serve", model, "--uds", str(folder / "socket"), *arguments],
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environ},
            )
        running = Server(process, folder)
        try:
            running.until(running.is_listening)
            yield running
        finally:
            running.client.close()
            if process.poll() is None:
                process.kill()
            process.wait()
