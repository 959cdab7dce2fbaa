"""A conversation: reading messages, its commands, and what Ctrl-C does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest

from pocketllm.cli import chat as chat_module
from pocketllm.cli.chat import Conversation, read_message
from pocketllm.errors import ContextLengthError, EngineError
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import TokenEvent
from tests.cli.programs import on_a_terminal, pocketllm


def lines(*texts: str) -> Callable[[str], str]:
    waiting = iter(texts)

    def read_line(prompt: str) -> str:
        try:
            return next(waiting)
        except StopIteration:
            raise EOFError from None

    return read_line


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["hello"], "hello"),
        ([""], ""),
        (["one \\", "two\\", "three", "four"], "one \ntwo\nthree"),
        (["one\\"], "one\n"),
        (['"""one', "", 'two"""', "three"], "one\n\ntwo"),
        (['"""', "one", '"""'], "one"),
        (['"""one"""'], "one"),
        (['"""never', "closed"], "never\nclosed"),
        ([], None),
    ],
)
def test_a_message_may_have_many_lines(typed: list[str], message: str | None) -> None:
    assert read_message(lines(*typed)) == message


class FakeLLM:
    """Streams each answer's pieces; an exception among them is raised there."""

    def __init__(self, *answers: Sequence[str | BaseException]) -> None:
        self.asked: list[list[dict[str, Any]]] = []
        self.num_closed = 0
        self._answers = list(answers)

    def chat_stream(self, messages: list[dict[str, Any]], sampling: SamplingParams) -> Iterator[TokenEvent]:
        self.asked.append([dict(message) for message in messages])
        return self._stream(self._answers.pop(0))

    def _stream(self, answer: Sequence[str | BaseException]) -> Iterator[TokenEvent]:
        try:
            for piece in answer:
                if isinstance(piece, BaseException):
                    raise piece
                yield TokenEvent(request_id="r", text=piece)
            yield TokenEvent(request_id="r", finish_reason="stop")
        finally:
            self.num_closed += 1


def converse(monkeypatch: pytest.MonkeyPatch, llm: FakeLLM, *typed: str, system: str | None = None) -> Conversation:
    conversation = Conversation(cast(Any, llm), SamplingParams(), system)
    monkeypatch.setattr(chat_module, "_read_line", lines(*typed))
    conversation.run()
    return conversation


def test_every_turn_sends_the_conversation_so_far(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    llm = FakeLLM(["Good ", "day"], ["Fine"])
    converse(monkeypatch, llm, "Hello", "", "How are you?", system="Be kind.")
    assert [[message["content"] for message in asked] for asked in llm.asked] == [
        ["Be kind.", "Hello"],
        ["Be kind.", "Hello", "Good day", "How are you?"],
    ]
    assert capsys.readouterr().out == "Good day\nFine\n"


def test_lines_with_a_slash_are_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    llm = FakeLLM(["a"], ["b"], ["c"])
    typed = ["one", "/reset", "/system Be brief.", "two", "/system", "/help", "/dance", "three", "/exit", "four"]
    converse(monkeypatch, llm, *typed)
    assert [[message["content"] for message in asked] for asked in llm.asked] == [
        ["one"],
        ["Be brief.", "two"],
        ["two", "b", "three"],
    ]
    said = capsys.readouterr().err
    assert "/reset" in said
    assert "There is no command /dance" in said


def test_an_interrupt_stops_the_answer_and_keeps_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = FakeLLM(["Once upon", KeyboardInterrupt()], [KeyboardInterrupt()], ["Yes"])
    conversation = converse(monkeypatch, llm, "Tell me", "nothing yet", "Go on")
    assert [message["content"] for message in conversation.messages] == ["Tell me", "Once upon", "Go on", "Yes"]
    assert llm.num_closed == 3


@pytest.mark.parametrize("error", [EngineError("It fell over."), ContextLengthError("70 do not fit 64.")])
def test_an_error_takes_the_turn_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    conversation = converse(monkeypatch, FakeLLM(["Wel", error], ["Yes"]), "first", "second")
    assert [message["content"] for message in conversation.messages] == ["second", "Yes"]
    said = capsys.readouterr().err
    assert f"Error: {error}" in said
    assert ("/reset" in said) == isinstance(error, ContextLengthError)


def test_through_a_pipe_there_are_no_prompts() -> None:
    done = pocketllm("chat", "--backend", "echo", "--model", "smollm2", stdin="one\ntwo \\\nthree\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "one\ntwo \nthree\n", "")


def test_an_interrupt_on_a_terminal_stops_the_answer_alone() -> None:
    script = json.dumps(["tick " * 2000, "short answer"])
    options = ("--backend", "echo", "--backend-option", "delay_s=0.02", "--backend-option", f"script={script}")
    with on_a_terminal("chat", "--model", "smollm2", *options) as terminal:
        terminal.wait_for("> ")
        terminal.type("Hello\n")
        terminal.wait_for("tick tick")
        terminal.type("\x03")
        terminal.wait_for("(stopped)")
        terminal.wait_for("> ")
        terminal.type("half a line\x03")
        terminal.wait_for("(Ctrl-D or /exit leaves)", again="\x03")
        terminal.wait_for("> ")
        terminal.type('"""two\nlines"""\n')
        terminal.wait_for("short answer")
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.wait_for_end() == 0
        assert "Traceback" not in terminal.seen
