"""The life of a host: opening, readiness, heartbeats, restarts, draining and closing."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from pocketllm.engine.call import GenerateCall
from pocketllm.errors import (
    BackendUnavailableError,
    CheckpointError,
    EngineError,
)
from pocketllm.hookspecs import hookimpl
from pocketllm.host.state import HostLimits, HostState
from tests.host.manual_engine import DrivenHost, ManualBackend


@pytest.mark.parametrize("failure", [SystemExit("no GPU"), KeyboardInterrupt(), RuntimeError("boom")])
def test_whatever_an_open_raises_the_host_says_so(
    toy_path: Path, backend: ManualBackend, failure: BaseException
) -> None:
    backend.failures.append(failure)
    with DrivenHost(toy_path, backend, wait=False) as driven:
        with pytest.raises(EngineError, match="Loading failed"):
            driven.host.wait_ready(20)
        with pytest.raises(BackendUnavailableError, match="could not be loaded"):
            driven.submit()


def test_an_engine_without_an_event_source_is_refused(toy_path: Path, backend: ManualBackend) -> None:
    backend.without_events = True
    with DrivenHost(toy_path, backend, wait=False) as driven:
        with pytest.raises(EngineError, match="event source"):
            driven.host.wait_ready(20)
        assert driven.engine.closed


class Quiet:
    @hookimpl
    def pocketllm_generate(self, call: GenerateCall) -> None:
        return None


def test_an_extension_may_have_any_name(toy_path: Path, backend: ManualBackend) -> None:
    with DrivenHost(toy_path, backend, extensions={"engine": Quiet(), "gate": Quiet()}) as driven:
        assert driven.submit("hello").record.num_prompt_tokens == len(driven.ids("hello"))


def test_an_engine_lost_during_the_hook_refuses_the_request(toy_path: Path, backend: ManualBackend) -> None:
    class LosesTheEngine:
        @hookimpl
        def pocketllm_generate(self, call: GenerateCall) -> None:
            driven.host.fail("lost")

    with DrivenHost(toy_path, backend, extensions={"loses": LosesTheEngine()}) as driven:
        with pytest.raises(BackendUnavailableError, match="was lost"):
            driven.submit()
        assert driven.host.num_active == 0


class Watchdog:
    """Watches over the engine from outside."""

    def __init__(self) -> None:
        self.answer: str | BaseException | None = None

    @hookimpl
    def pocketllm_heartbeat(self) -> str | None:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def test_a_heartbeat_that_says_why_ends_every_request_and_opens_another_engine(
    toy_path: Path, backend: ManualBackend
) -> None:
    watchdog = Watchdog()
    with DrivenHost(toy_path, backend, extensions={"watchdog": watchdog}) as driven:
        reader = driven.submit()
        watchdog.answer = "The device is gone."
        driven.drain_until(lambda: reader.record.finished)
        with pytest.raises(EngineError, match="The device is gone"):
            reader.record.result()
        watchdog.answer = None
        driven.drain_until(lambda: driven.host.state is HostState.READY)
        assert driven.host.epoch == 2


def test_a_heartbeat_that_raises_is_logged_and_says_nothing_of_the_engine(
    toy_path: Path, backend: ManualBackend, caplog: pytest.LogCaptureFixture
) -> None:
    watchdog = Watchdog()
    watchdog.answer = ValueError("oops")
    with DrivenHost(toy_path, backend, extensions={"watchdog": watchdog}) as driven:
        driven.drain_until(lambda: "raised in pocketllm_heartbeat" in caplog.text)
        assert driven.host.epoch == 1
        assert "Plugin 'watchdog'" in caplog.text


def test_no_heartbeat_is_asked_where_nobody_has_one(driven: DrivenHost) -> None:
    assert driven.host.next_timer() is None


def test_draining_while_loading_never_becomes_ready(toy_path: Path, backend: ManualBackend) -> None:
    backend.may_open.clear()
    with DrivenHost(toy_path, backend, wait=False) as driven:
        driven.drain_until(lambda: driven.host.progress[0] == "weights")
        driven.host.begin_drain()
        backend.may_open.set()
        driven.drain_until(lambda: bool(backend.opened) and backend.engine.closed)
        assert driven.host.state is HostState.DRAINING


def test_a_host_tells_its_progress_until_it_is_ready(toy_path: Path, backend: ManualBackend) -> None:
    backend.may_open.clear()
    with DrivenHost(toy_path, backend, wait=False) as driven:
        driven.drain_until(lambda: driven.host.progress[0] == "weights")
        health = driven.host.health()
        assert (health.status, health.ready) == ("loading", False)
        assert "weights (50%)" in health.message
        with pytest.raises(BackendUnavailableError, match="still loading"):
            driven.submit()
        with pytest.raises(BackendUnavailableError, match=r"still loading after 0\.01 s"):
            driven.host.wait_ready(0.01)
        changes: list[HostState] = []
        driven.host.on_change(lambda: changes.append(driven.host.state))
        backend.may_open.set()
        driven.host.wait_ready(20)
        driven.drain()
        assert changes == [HostState.READY]
        assert driven.host.health().ready


def test_a_first_load_that_fails_says_why_and_is_not_repeated(toy_path: Path, backend: ManualBackend) -> None:
    backend.failures.append(CheckpointError("The weights are upside down."))
    with DrivenHost(toy_path, backend, wait=False) as driven:
        with pytest.raises(CheckpointError, match="upside down"):
            driven.host.wait_ready(20)
        assert driven.host.state is HostState.FAILED
        time.sleep(0.1)
        assert driven.host.state is HostState.FAILED
        assert backend.opened == []


def test_a_broken_engine_fails_its_requests_truthfully_and_is_reopened(
    driven: DrivenHost, backend: ManualBackend, caplog: pytest.LogCaptureFixture
) -> None:
    reader = driven.submit()
    first = driven.engine
    first.post(reader.handle, *driven.ids("ab"))
    first.break_down("The device is on fire.")
    events = reader.take()
    assert events[-1].finish_reason == "error"
    assert events[-1].error == "The device is on fire."
    assert f"The device is on fire. It ends these requests: {reader.record.request_id}" in caplog.text
    assert "".join(event.text for event in events) == "ab"
    with pytest.raises(EngineError, match="on fire"):
        reader.record.result()
    driven.drain_until(lambda: driven.host.state is HostState.READY)
    assert driven.host.epoch == 2
    assert driven.engine is not first
    driven.drain_until(lambda: first.closed)
    again = driven.submit()
    driven.engine.finish(again.handle, "stop")
    assert again.take()[-1].finish_reason == "stop"


def test_restarts_are_limited_and_the_host_says_so(toy_path: Path, backend: ManualBackend) -> None:
    limits = HostLimits(restart_delay_s=0.001, max_restarts=2)
    with DrivenHost(toy_path, backend, limits=limits) as driven:
        for epoch in (1, 2, 3):
            driven.drain_until(lambda epoch=epoch: driven.host.epoch == epoch and driven.host.state is HostState.READY)  # type: ignore[misc]  # mypy cannot infer a lambda's default
            driven.engine.break_down("Broken again.")
        driven.drain()
        time.sleep(0.1)
        driven.drain()
        assert driven.host.state is HostState.FAILED
        assert "failed 3 times" in driven.host.health().message
        with pytest.raises(BackendUnavailableError, match="Broken again"):
            driven.submit()


def test_a_failed_reopen_counts_and_is_tried_again(driven: DrivenHost, backend: ManualBackend) -> None:
    backend.failures.append(RuntimeError("still hot"))
    driven.engine.break_down("The device is on fire.")
    driven.drain_until(lambda: driven.host.epoch == 2 and driven.host.state is HostState.READY)
    assert backend.failures == []


def test_close_ends_everything_and_is_idempotent(driven: DrivenHost) -> None:
    reader = driven.submit()
    driven.host.close(1.0)
    driven.host.close(1.0)
    assert reader.take()[-1].finish_reason == "cancelled"
    assert driven.engine.closed
    with pytest.raises(BackendUnavailableError, match="closed"):
        driven.submit()


def test_close_while_loading_closes_what_was_opened(toy_path: Path, backend: ManualBackend) -> None:
    backend.may_open.clear()
    driven = DrivenHost(toy_path, backend, wait=False)
    driven.drain_until(lambda: driven.host.progress[0] == "weights")
    closer = threading.Thread(target=driven.host.close, args=(5.0,))
    closer.start()
    driven.drain_until(lambda: driven.host.state is HostState.CLOSED)
    backend.may_open.set()
    closer.join(20)
    assert not closer.is_alive()
    assert driven.engine.closed
    driven.host.release()


def test_draining_refuses_new_requests_and_lets_active_ones_end(driven: DrivenHost) -> None:
    reader = driven.submit()
    driven.host.begin_drain()
    with pytest.raises(BackendUnavailableError, match="shutting down"):
        driven.submit()
    assert not driven.host.wait_idle(0.01)
    driven.engine.finish(reader.handle, "stop")
    driven.drain()
    assert driven.host.wait_idle(1.0)
    assert driven.host.health().status == "draining"
