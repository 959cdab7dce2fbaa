"""A progress bar on a terminal, and nothing in a pipe."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from pocketllm.cli import loading
from pocketllm.engine_args import EngineArgs


class Console(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


class FakeLLM:
    def __init__(self, args: EngineArgs, on_progress: Callable[[str, float], None] | None = None) -> None:
        self.args = args
        if on_progress is not None:
            on_progress("reading weights", 0.5)
            on_progress("warming up", 1.0)


def open_on(stderr: Console, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("pocketllm.llm.LLM", FakeLLM)
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    return loading.open_llm(EngineArgs(model="m"))


def test_loading_shows_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Console(terminal=True)
    assert open_on(stderr, monkeypatch).args.model == "m"
    assert "warming up" in stderr.getvalue()
    assert "100%" in stderr.getvalue()


def test_loading_shows_nothing_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Console(terminal=False)
    assert open_on(stderr, monkeypatch).args.model == "m"
    assert stderr.getvalue() == ""
