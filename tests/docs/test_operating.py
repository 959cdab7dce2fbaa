"""docs/operating.md against the code and against servers that run."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pocketllm.host.state import HostLimits
from tests.docs.operating_tables import MODELS, default, options, serve_command, variables
from tests.docs.pages import REPOSITORY, blocks, text
from tests.docs.server import CHAT, Server, server
from tests.server.fake_llm import FakeLLM, Script
from tests.server.http_app import client_of, until

PAGE = Path("docs/operating.md")
KEY = "a-key-of-the-test"


def section(title: str) -> str:
    return re.split(r"\n##+ ", text(PAGE).split(f" {title}\n", 1)[1])[0]


def table(title: str, *, head: str) -> list[list[str]]:
    """The rows of the table under a heading whose first column is called ``head``."""
    body = section(title).split(f"| {head} |", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in body.splitlines()[2:]]


def names(rows: list[list[str]]) -> list[str]:
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row[0])]


def block(before: str) -> str:
    """The code of the block that follows a comment."""
    found = [each for each in blocks(PAGE) if text(PAGE).splitlines()[each.line - 3] == f"<!-- {before} -->"]
    assert len(found) == 1, before
    return found[0].code


# -- options ------------------------------------------------------------------------------------------------------


def test_the_key_of_an_option_is_its_flag() -> None:
    keys = serve_command().keys(serve_command().make_context("serve", ["--help"], resilient_parsing=True))
    expected = {option.opts[0].removeprefix("--").replace("-", "_") for option in options()}
    assert set(keys) == (expected - {"config", "print_config", "backend_option"}) | {"backend_options"}


def test_the_config_file_of_the_page_is_understood(tmp_path: Path) -> None:
    (shown,) = [each.code for each in blocks(PAGE) if each.language == "toml"]
    keys = tmp_path / "keys"
    keys.write_text(f"# of the test\n{KEY}\n")
    config = tmp_path / "config.toml"
    config.write_text(shown.replace("/etc/pocketllm/keys", str(keys)))
    done = run("--config", str(config), "--print-config")
    assert done.returncode == 0, done.stderr
    printed = tomllib.loads(done.stdout)
    for key, value in tomllib.loads(config.read_text()).items():
        assert printed[key] == value


def test_the_page_gives_the_order_of_precedence_that_holds(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("port = 2\nlog_level = 'error'\n")
    environ = {"POCKETLLM_PORT": "3", "POCKETLLM_LOG_LEVEL": "debug", "POCKETLLM_HOST": "127.0.0.2"}
    done = run("--config", str(config), "--port", "1", "--print-config", **environ)
    printed = tomllib.loads(done.stdout)
    assert (printed["port"], printed["log_level"], printed["host"]) == (1, "error", "127.0.0.2")
    sentence = (
        "The command line wins over the config file, the file over the environment, the environment over the default."
    )
    assert sentence in " ".join(text(PAGE).split())


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pocketllm", "serve", *arguments],
        text=True,
        capture_output=True,
        timeout=60,
        env={**os.environ, **environ},
    )


def variables_of_the_code() -> set[str]:
    """Every name of an environment variable that product code spells out."""
    found: set[str] = set()
    for path in [*REPOSITORY.glob("pocketllm-*/src/**/*.py"), *REPOSITORY.glob("plugins/*/src/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set(re.findall(r"^POCKET(?:LLM)?_[A-Z0-9_]*[A-Z0-9]$", node.value))
    for path in REPOSITORY.glob("pocketllm-cpp/csrc/**/*.cpp"):
        found |= set(re.findall(r'getenv\("(\w+)"\)', path.read_text(encoding="utf-8")))
    return found


def test_every_variable_of_the_code_is_on_the_page() -> None:
    own = names(table("Variables without a flag", head="variable"))
    of_flags = {name for option in options() for name in variables(option)}
    assert variables_of_the_code() - of_flags == {name for name in own if name.startswith("POCKET")}
    assert set(own).isdisjoint(of_flags)


# -- probes, logs, signals: one server from its start to its second signal --------------------------------------------


class Life:
    """What a server said in a life with everything in it."""

    def __init__(self) -> None:
        self.ready: dict[str, list[dict[str, Any]]] = {}
        self.health: dict[str, list[dict[str, Any]]] = {}
        self.statuses: set[tuple[str, str, int]] = set()
        self.lines: list[dict[str, Any]] = []
        self.exit_code: int | None = None

    def look(self, running: Server) -> bool:
        ready, health = running.client.get("/ready"), running.client.get("/health")
        for response, kind, key in ((ready, self.ready, "reason"), (health, self.health, "status")):
            body = response.json()
            kind.setdefault(body[key], []).append(body)
            self.statuses.add((response.request.url.path, body[key], response.status_code))
        assert running.client.get("/alive").json() == {"status": "alive"}
        return ready.status_code == 200


@pytest.fixture(scope="module")
def life() -> Life:
    life = Life()
    options = ("--backend", "echo", "--backend-option", "delay_s=0.02", "--log-format", "json", "--log-prompts")
    with server(*options, "--log-level", "debug", "--api-key", KEY) as running:
        running.until(lambda: life.look(running))
        running.client.headers["authorization"] = f"Bearer {KEY}"
        assert running.chat("Hello").status_code == 200
        kill_engine(running)
        running.until(lambda: not life.look(running))
        running.until(lambda: life.look(running))
        slow = threading.Thread(target=running.chat, args=["again and again " * 100])
        slow.start()
        running.until(lambda: "\npocketllm_requests_running 1\n" in running.client.get("/metrics").text)
        running.signal()
        running.until(lambda: running.client.get("/ready").json()["reason"] == "draining")
        life.look(running)
        assert running.chat("x").headers["retry-after"] == "5"
        running.signal()
        slow.join(20)
        life.exit_code = running.process.wait(20)
        life.lines = [json.loads(line) for line in running.stderr.splitlines()]
    return life


def kill_engine(running: Server) -> None:
    """Kill the child process that the engine runs in."""
    children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text().split()
    assert len(children) == 1
    os.kill(int(children[0]), signal.SIGKILL)


def test_the_page_shows_the_bodies_that_probes_answer(life: Life) -> None:
    health, ready = json.loads(block("body of /health")), json.loads(block("body of /ready"))
    assert life.health["ready"][0] == health
    assert life.ready["ready"][0] == ready
    for kind, shown in ((life.ready, ready), (life.health, health)):
        assert all(set(body) - {"last_failure"} == set(shown) for bodies in kind.values() for body in bodies)
    assert all("last_failure" in body for body in life.health["failed"])


async def test_the_page_lists_the_reasons_that_ready_gives(life: Life) -> None:
    seen = set(life.ready)
    failing = FakeLLM(Script(fail_after=0))
    async with client_of(failing) as client:
        for status in ("loading", "closed", "failed", "ready"):
            failing.status = status
            seen.add((await client.get("/ready")).json()["reason"])
        readiness = client.app.service.models.default.readiness  # type: ignore[attr-defined]
        await until(lambda: readiness.verdict().reason == "warm_up_failed")
        seen.add((await client.get("/ready")).json()["reason"])
    assert seen == set(names(table("Probes", head="reason")))


def test_the_page_lists_the_statuses_that_probes_answer(life: Life) -> None:
    for route, word, status in life.statuses:
        wanted = 200 if (word == "ready" if route == "/ready" else word != "failed") else 503
        assert status == wanted, (route, word)
    assert {("/health", "failed", 503), ("/ready", "failed", 503), ("/health", "ready", 200)} <= life.statuses


def test_the_page_lists_the_fields_that_the_log_has(life: Life) -> None:
    shown = set(names(table("Logs", head="field")))
    seen = {field for line in life.lines for field in line}
    assert seen | {"traceback"} == shown, "the only one that needs a fault in the program is the traceback"
    access = {field for line in life.lines if line["logger"] == "pocketllm_server.access" for field in line}
    assert access == shown - {"traceback"}


def test_a_second_signal_ends_the_drain(life: Life) -> None:
    assert life.exit_code == 128 + signal.SIGTERM


# -- exit codes ---------------------------------------------------------------------------------------------------


def test_the_page_lists_the_exit_codes_that_servers_give(tmp_path: Path) -> None:
    seen = {128 + signal.SIGTERM, 128 + signal.SIGINT}  # the first is in the life above
    with server("--backend", "echo") as running:
        running.until_ready()
        running.signal()
        seen.add(running.process.wait(20))
    seen.add(run("--backend", "echo", "--port", "70000").returncode)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        seen.add(run("--backend", "echo", "--port", str(taken.getsockname()[1])).returncode)
    assert sorted(seen) == [int(row[0]) for row in table("Exit codes and signals", head="code")]


def test_a_second_ctrl_c_has_the_code_of_its_signal() -> None:
    with server("--backend", "echo", "--backend-option", "delay_s=0.02") as running:
        running.until_ready()
        slow = threading.Thread(target=running.chat, args=["again and again " * 100])
        slow.start()
        running.until(lambda: "\npocketllm_requests_running 1\n" in running.client.get("/metrics").text)
        running.signal(signal.SIGINT)
        running.until(lambda: running.client.get("/ready").json()["reason"] == "draining")
        running.signal(signal.SIGINT)
        slow.join(20)
        assert running.process.wait(20) == 128 + signal.SIGINT


# -- limits -------------------------------------------------------------------------------------------------------

LOW = {
    "--max-header-bytes": "700",
    "--max-body-bytes": "3000",
    "--max-json-values": "60",
    "--max-messages": "3",
    "--max-prompt-chars": "400",
    "--max-model-len": "128",
    "--max-queue": "0",
    "--body-timeout": "0.2",
}
"""The limits that one request can pass, so low that it is a small one."""


@pytest.fixture(scope="module")
def low_limits() -> Iterator[Server]:
    arguments = [word for pair in LOW.items() for word in pair]
    with server(
        "--backend", "echo", "--max-batch-size", "2", "--backend-option", "delay_s=0.02", *arguments
    ) as running:
        running.until_ready()
        yield running


def _exceed(running: Server, flag: str) -> httpx.Response:
    """The answer to a request above one limit."""
    post = running.client.post
    match flag:
        case "--max-header-bytes":
            return running.client.get("/v1/models", headers={"cookie": "x" * 700})
        case "--max-body-bytes":
            return running.chat("x" * 3000)
        case "--max-json-values":
            return post("/v1/completions", json={"prompt": list(range(61))})
        case "--max-messages":
            return post(CHAT, json={"messages": [{"role": "user", "content": "x"}] * 4})
        case "--max-prompt-chars":
            return running.chat("x" * 401)
        case "--max-model-len":
            return running.chat("x " * 150)
        case "--max-queue":
            return _beside_others(running)
        case _:
            return post("/v1/completions", content=_slowly(), headers={"content-type": "application/json"})


def _beside_others(running: Server) -> httpx.Response:
    others = [threading.Thread(target=running.chat, args=["one two three four five six seven eight"]) for _ in range(2)]
    for other in others:
        other.start()
    running.until(lambda: "\npocketllm_queue_requests 2\n" in running.client.get("/metrics").text)
    response = running.chat("x")
    for other in others:
        other.join(20)
    return response


def _slowly() -> Iterator[bytes]:
    yield b'{"prompt":'
    time.sleep(0.5)
    yield b'"x"}'


@pytest.mark.parametrize("flag", LOW)
def test_what_is_over_a_limit_is_answered_as_the_page_says(flag: str, low_limits: Server) -> None:
    (row,) = [row for row in table("Limits", head="limit") if row[0] == f"`{flag}`"]
    response = _exceed(low_limits, flag)
    said = row[2].split(",")[0]
    assert response.status_code == int(said)
    error = response.json()["error"]
    words = re.findall(r"`([a-z_]+)`", row[2])
    if "`param`" in row[2]:
        assert error["param"] in words[1:]
    else:
        assert error["code"] == (words[0] if words else None)
    retry = re.search(r"Retry-After: (\d+)", row[2])
    assert response.headers.get("retry-after") == (retry[1] if retry else None)


def test_the_page_lists_the_defaults_that_limits_have() -> None:
    by_flag = {option.opts[0]: option for option in options()}
    rows = {flag: row for row in table("Limits", head="limit") for flag in names([row])}
    assert set(LOW) <= set(rows)
    for flag, row in rows.items():
        if re.fullmatch(r"\d+", row[1]):
            assert row[1] == default(by_flag[flag])


# -- sizes, files -------------------------------------------------------------------------------------------------


def test_the_formula_of_the_cache_is_what_the_engine_takes(smollm2_path: Path) -> None:
    smollm2, length = MODELS[0], 1024
    options = ("--backend", "cpp", "--max-model-len", str(length), "--max-batch-size", "4")
    with server(*options, model=str(smollm2_path)) as running:
        running.until_ready()
        (card,) = running.client.get("/v1/models").json()["data"]
        metrics = running.client.get("/metrics").text
        health = running.client.get("/health").json()
    assert card["capabilities"]["details"]["kv_cache_bytes"] == 4 * length * smollm2.bytes_per_position()
    assert f"\npocketllm_kv_blocks {4 * length // card['capabilities']['details']['block_size']}\n" in metrics
    assert health == {**json.loads(block("body of /health")), "backend": "cpp"}


def test_the_restarts_are_those_of_the_limits() -> None:
    limits = HostLimits()
    delays = [limits.restart_delay_s * 2**number for number in range(limits.max_restarts)]
    said = f"after {delays[0]:g}, {delays[1]:g} and {delays[2]:g} s; after more than three failures within five minutes"
    assert (limits.max_restarts, limits.restart_window_s, limits.hang_timeout_s) == (3, 300, 60)
    assert said in section("Failures, restarts, upgrades")


def test_the_proxy_and_the_unit_agree_with_the_defaults() -> None:
    by_flag = {option.opts[0]: option for option in options()}
    proxy, unit = block("file: nginx.conf"), block("file: pocketllm.service")
    (megabytes,) = re.findall(r"client_max_body_size (\d+)m;", proxy)
    assert int(megabytes) * 2**20 == int(default(by_flag["--max-body-bytes"]))
    (stop_s,) = re.findall(r"TimeoutStopSec=(\d+)", unit)
    assert int(stop_s) > float(default(by_flag["--drain-timeout"])) + 10
    assert "KillMode=mixed" in unit
