"""What each kind of failure looks like to a shell."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from pocketllm.cli.program import run_program
from pocketllm.errors import (
    BackendUnavailableError,
    CheckpointError,
    ConfigurationError,
    EngineError,
    PluginError,
    UnsupportedFeatureError,
)
from tests.cli.programs import DEADLINE_S, environment


def failing(error: BaseException) -> click.Command:
    def callback() -> None:
        raise error

    return click.Command("failing", callback=callback)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("It is wrong."), 2),
        (CheckpointError("It is wrong."), 2),
        (UnsupportedFeatureError("It is wrong."), 2),
        (BackendUnavailableError("It is wrong."), 1),
        (EngineError("It is wrong."), 1),
        (PluginError("It is wrong."), 1),
    ],
)
def test_our_errors_are_one_line(error: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program(failing(error), prog_name="p", args=[]) == code
    assert capsys.readouterr() == ("", "Error: It is wrong.\n")


def test_an_interrupt_ends_with_130_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program(failing(KeyboardInterrupt()), prog_name="p", args=[]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_wrong_usage_ends_with_2_and_names_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program(click.Command("plain"), prog_name="p", args=["--nope"]) == 2
    assert "--nope" in capsys.readouterr().err


def test_a_fault_in_the_program_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        run_program(failing(ZeroDivisionError()), prog_name="p", args=[])


def test_success_and_the_code_of_a_command() -> None:
    assert run_program(click.Command("fine", callback=lambda: None), prog_name="p", args=[]) == 0
    assert run_program(failing(click.exceptions.Exit(7)), prog_name="p", args=[]) == 7


def test_a_reader_that_leaves_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "pocketllm", "plugins"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    process.stdout.close()
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert errors == b""
