"""An engine in a child process: the same events, and every way a child or its parent may die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pocketllm.engine_args import EngineArgs
from pocketllm.errors import ConfigurationError, EngineError
from pocketllm.host.engine_host import EngineHost
from pocketllm.host.extensions import EngineHooks
from pocketllm.host.state import HostLimits, HostState
from pocketllm.llm import LLM
from pocketllm.plugins.registry import Registry
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import Command, GenerationRequest, TokenEvent
from tests.host import commanded_backend

QUICK = HostLimits(restart_delay_s=0.01, heartbeat_s=0.2, hang_timeout_s=1.0)
SLOW_SCRIPT = "word " * 400


def _args(path: Path, **options: object) -> EngineArgs:
    return EngineArgs(model=str(path), backend="echo", placement="child", max_batch_size=8, backend_options=options)


@pytest.fixture
def slow(toy_path: Path) -> Iterator[LLM]:
    """An engine in a child that would stream for many seconds."""
    with LLM(_args(toy_path, script=SLOW_SCRIPT, delay_s=0.02), limits=QUICK) as llm:
        yield llm


def _hooks(host: EngineHost) -> EngineHooks:
    opened = host._life.engine
    assert opened is not None
    return opened.hooks


def _child_pid(host: EngineHost) -> int:
    pid: int = _hooks(host).engine.process.pid  # type: ignore[attr-defined]  # a ChildEngine
    return pid


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie whose parent has not looked yet is dead for our purposes.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def _wait(condition: object, timeout_s: float = 20.0) -> None:
    give_up_at = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]  # a callable
        assert time.monotonic() < give_up_at, "waited too long"
        time.sleep(0.01)


def test_the_child_gives_what_the_thread_gives(toy_path: Path) -> None:
    params = SamplingParams(n=2, temperature=0.8, seed=3, logprobs=True, top_logprobs=2, max_tokens=12)
    answers = []
    for placement in ("thread", "child"):
        args = EngineArgs(model=str(toy_path), backend="echo", placement=placement)
        with LLM(args) as llm:
            (result,) = llm.generate("a fairly short prompt", params, request_id="same")
            answers.append((result.choices, result.usage, llm.capabilities))
    assert answers[0] == answers[1]


def test_a_load_that_fails_in_the_child_raises_its_own_error(toy_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="capability_set"):
        LLM(_args(toy_path, capability_set="nonsense"))


def test_kill_9_fails_the_streams_once_and_service_comes_back(slow: LLM) -> None:
    streams = [slow.generate_stream("x") for _ in range(4)]
    for stream in streams:
        next(stream)
    pid = _child_pid(slow.host)
    os.kill(pid, signal.SIGKILL)
    for stream in streams:
        rest: list[TokenEvent] = list(stream)
        assert [event.finish_reason for event in rest if event.finish_reason] == ["error"]
        assert "SIGKILL" in (rest[-1].error or "")
        assert rest[-1].usage is not None
    _wait(lambda: slow.host.state is HostState.READY and slow.host.epoch == 2)
    assert slow.host.failure is None
    assert not _alive(pid)
    assert next(slow.generate_stream("x")).text


def test_a_request_that_waits_for_its_result_is_told(slow: LLM) -> None:
    record = slow.host.submit(_request())
    os.kill(_child_pid(slow.host), signal.SIGKILL)
    _wait(lambda: record.finished)
    with pytest.raises(EngineError, match="SIGKILL"):
        record.result()


def test_a_hung_child_is_killed_and_replaced(slow: LLM) -> None:
    stream = slow.generate_stream("x")
    next(stream)
    pid = _child_pid(slow.host)
    os.kill(pid, signal.SIGSTOP)
    rest = list(stream)
    assert rest[-1].finish_reason == "error"
    assert "did not answer" in (rest[-1].error or "")
    _wait(lambda: slow.host.epoch == 2)
    assert not _alive(pid)


def test_submitting_to_a_stopped_child_does_not_block_the_caller(slow: LLM) -> None:
    os.kill(_child_pid(slow.host), signal.SIGSTOP)
    long_prompt = [5] * 400
    started = time.monotonic()
    records = [slow.host.submit(_request(long_prompt)) for _ in range(50)]
    assert time.monotonic() - started < 1.0
    _wait(lambda: all(record.finished for record in records))


def test_cancel_and_stats_cross_the_pipe(slow: LLM) -> None:
    stream = slow.generate_stream("x", request_id="mine")
    next(stream)
    _wait(lambda: slow.metrics().num_running == 1)
    assert slow.cancel("mine")
    assert list(stream)[-1].finish_reason == "cancelled"
    _wait(lambda: slow.metrics().num_running == 0)


@pytest.mark.parametrize("placement", ["thread", "child"])
def test_commands_answer_alike_in_both_placements(toy_path: Path, placement: str) -> None:
    args = EngineArgs(model=str(toy_path), backend="commanded", placement=placement)
    with LLM(args, registry=commanded_backend.registry()) as llm:
        hooks = _hooks(llm.host)
        assert hooks.control(Command("no such command")) is None
        ticket = hooks.control(Command("answer", {"a": 1}))
        assert ticket is not None
        assert ticket.result(20) == {"a": 1}


def test_a_command_that_the_card_names_in_vain_fails_its_ticket(toy_path: Path) -> None:
    args = EngineArgs(model=str(toy_path), backend="commanded", placement="child")
    with LLM(args, registry=commanded_backend.registry()) as llm:
        ticket = _hooks(llm.host).control(Command("unwritten"))
        assert ticket is not None
        with pytest.raises(EngineError, match="its backend's card names it"):
            ticket.result(20)


@pytest.mark.parametrize("placement", ["thread", "child"])
def test_a_heartbeat_that_finds_the_engine_lost_ends_its_requests(toy_path: Path, placement: str) -> None:
    args = EngineArgs(model=str(toy_path), backend="commanded", placement=placement)
    with LLM(args, registry=commanded_backend.registry(), limits=QUICK) as llm:
        _wait(lambda: llm.host.next_timer() is not None)
        _hooks(llm.host).control(Command("lose"))
        _wait(lambda: llm.host.epoch == 2 and llm.host.state is HostState.READY)
        assert llm.generate("again")[0].text == "again"


def test_a_request_that_no_frame_can_carry_is_refused_and_leaves_nothing(slow: LLM) -> None:
    request = GenerationRequest(prompt="x", metadata={"chat_template_kwargs": {"huge": 2**70}})
    with pytest.raises(ConfigurationError, match="64 bits"):
        slow.host.submit(request)
    assert slow.host.num_active == 0


def test_close_ends_streams_and_leaves_no_process(toy_path: Path) -> None:
    llm = LLM(_args(toy_path, script=SLOW_SCRIPT, delay_s=0.02))
    stream = llm.generate_stream("x")
    next(stream)
    pid = _child_pid(llm.host)
    llm.close()
    assert list(stream)[-1].finish_reason == "cancelled"
    assert not _alive(pid)


PARENT = """
import sys, time
from pocketllm import LLM, EngineArgs
if __name__ == "__main__":
    llm = LLM(EngineArgs(model=sys.argv[1], backend="echo", placement="child",
                         backend_options={"script": "word " * 400, "delay_s": float(sys.argv[2])}))
    stream = llm.generate_stream("x")
    next(stream)
    print(llm.host._life.engine.hooks.engine.process.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("delay_s", ["0.02", "5"])
def test_no_child_outlives_a_killed_parent(toy_path: Path, tmp_path: Path, delay_s: str) -> None:
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(PARENT))
    with subprocess.Popen([sys.executable, str(script), str(toy_path), delay_s], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert _alive(pid)
        parent.kill()
    _wait(lambda: not _alive(pid))


def test_the_environment_of_the_child_sees_the_same_plugins(toy_path: Path) -> None:
    """The host's list of plugins travels, so the child cannot pick another distribution of the same name."""
    registry = Registry()
    with LLM(_args(toy_path), registry=registry) as llm:
        assert llm.capabilities.name == "echo"
        names = [plugin.name for plugin in registry.plugins]
        assert json.dumps(names).count('"echo"') == 1


def _request(tokens: list[int] | None = None) -> GenerationRequest:
    return GenerationRequest(prompt_tokens=tuple(tokens or [5]))
