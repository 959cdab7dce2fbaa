"""The server's progress bar is the command line's own, and gives way to a line that is said while it is there."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from pocketllm.cli.loading import loading_bar
from tests.cli.test_loading import Console


def test_loading_shows_one_bar_on_a_terminal() -> None:
    assert importlib.util.find_spec("pocketllm_server.loading_bar") is None


def test_it_shows_progress_and_can_be_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Console(terminal=True)
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    with loading_bar() as (report, stop):
        assert report is not None
        report("reading weights", 0.5)
        stop()
        print("a line", file=sys.stderr)
        shown = stderr.getvalue()
    assert "reading weights" in shown
    assert shown.endswith("a line\n")
    assert stderr.getvalue().endswith("a line\n")


def test_loading_shows_nothing_where_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Console(terminal=False)
    monkeypatch.setattr("sys.stderr", stderr)
    with loading_bar() as (report, stop):
        assert report is None
        stop()
    assert stderr.getvalue() == ""
