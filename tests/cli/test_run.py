"""``pocketllm run`` on the echo backend, which answers what it is told to."""

from __future__ import annotations

import json

import pytest

from tests.cli.programs import on_a_terminal, pocketllm

ECHO = ("--backend", "echo", "--model", "smollm2")
ANSWER = ("--backend-option", 'script="Ships — and ½ a sail."')


def test_the_answer_alone_is_on_stdout() -> None:
    done = pocketllm("run", "Hello", *ECHO, *ANSWER)
    assert (done.returncode, done.stdout, done.stderr) == (0, "Ships — and ½ a sail.\n", "")


@pytest.mark.parametrize("args", [[], ["-"]])
def test_the_prompt_may_come_through_a_pipe(args: list[str]) -> None:
    done = pocketllm("run", *args, *ECHO, stdin="from a pipe")
    assert (done.returncode, done.stdout) == (0, "from a pipe\n")


def test_raw_has_no_template() -> None:
    templated = pocketllm("run", "--prompt", "word", *ECHO, "--stats")
    raw = pocketllm("run", "--raw", "word", *ECHO, "--stats")
    assert int(templated.stderr.split()[0]) > int(raw.stderr.split()[0])
    assert "finish reason stop" in raw.stderr


def test_sampling_options_reach_the_engine() -> None:
    done = pocketllm("run", "Hello", *ECHO, *ANSWER, "--max-tokens", "2", "--stats")
    assert "2 answer tokens" in done.stderr
    assert "finish reason length" in done.stderr
    assert done.stdout != "Ships — and ½ a sail.\n"


@pytest.mark.parametrize(
    ("args", "code", "part"),
    [
        (["x", "--temperature", "-1"], 2, "Error: temperature = -1 is out of range"),
        (["x", "--raw", "--system", "s"], 2, "--raw has no messages"),
        (["x", "--backend", "nobody"], 1, "Error: Backend 'nobody' is not installed"),
        (["x", "--model", "nowhere.gguf"], 2, "Error: There is no file or folder 'nowhere.gguf'."),
        (["x", "--backend-option", "skript=1"], 2, "Did you mean 'script'?"),
        (["x", "--tensor-parallel-size", "2"], 2, "tensor_parallel_size = 2 is not supported yet"),
        ([""], 2, "The prompt is empty."),
    ],
)
def test_what_cannot_be_done_is_one_line_without_a_traceback(args: list[str], code: int, part: str) -> None:
    options = [] if "--backend" in args else ["--backend", "echo"]
    done = pocketllm("run", *args, *options)
    assert (done.returncode, done.stdout) == (code, "")
    assert part in done.stderr
    assert "Traceback" not in done.stderr


def test_on_a_terminal_a_prompt_is_asked_for_and_ctrl_c_is_130() -> None:
    with on_a_terminal("run", *ECHO) as terminal:
        assert terminal.wait_for_end() == 2
        assert "Give a prompt" in terminal.seen
    slow = ("--backend-option", "delay_s=0.05", "--backend-option", f"script={json.dumps('tick ' * 2000)}")
    with on_a_terminal("run", "Hello", *ECHO, *slow) as terminal:
        terminal.wait_for("tick tick")
        terminal.type("\x03")
        assert terminal.wait_for_end() == 130
        assert "Traceback" not in terminal.seen


def test_capabilities_are_printed_as_json_and_as_a_table() -> None:
    done = pocketllm("capabilities", *ECHO, "--json")
    assert done.returncode == 0
    declared = json.loads(done.stdout)
    assert (declared["name"], declared["max_model_len"], declared["supports_streaming"]) == ("echo", 8192, True)
    text = pocketllm("capabilities", *ECHO).stdout
    rows = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert (rows["name"], rows["supports_streaming"], rows["max_model_len"]) == ("echo", "yes", "8192")
