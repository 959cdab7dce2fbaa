"""``pocketllm chat``: a conversation on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from pocketllm.cli.answer import Answer, write_answer
from pocketllm.cli.engine_options import EngineCommand, engine_args_from_options, engine_options
from pocketllm.cli.loading import open_llm
from pocketllm.cli.sampling_options import sampling_from_options, sampling_options
from pocketllm.errors import ContextLengthError, PocketLLMError
from pocketllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pocketllm.llm import LLM

_FENCE = '"""'
_HELP = f"""\
/reset         forget the conversation
/system TEXT   set the system message (without TEXT: remove it)
/help          show this
/exit          leave, as does Ctrl-D
Ctrl-C stops an answer. A line that ends in \\ continues; a message between {_FENCE} and {_FENCE} may have more."""


@click.command(cls=EngineCommand)
@click.option("--system", help="System message of the conversation.")
@sampling_options
@engine_options
def chat(system: str | None, **options: Any) -> None:
    """Talk with a model on the terminal."""
    sampling = sampling_from_options(options)
    args = engine_args_from_options(**options)
    with open_llm(args) as llm:
        if sys.stdin.isatty():
            _enable_line_editing()
            click.echo("/help lists the commands. Ctrl-C stops an answer, Ctrl-D leaves.", err=True)
        Conversation(llm, sampling, system).run()


class Conversation:
    """The messages so far, and the loop that reads one and answers it."""

    def __init__(self, llm: LLM, sampling: SamplingParams, system: str | None = None) -> None:
        self.system = system
        self.turns: list[dict[str, Any]] = []
        self._llm = llm
        self._sampling = sampling

    @property
    def messages(self) -> list[dict[str, Any]]:
        head = [{"role": "system", "content": self.system}] if self.system else []
        return head + self.turns

    def run(self) -> None:
        """Read and answer until the input ends or the person leaves."""
        while True:
            try:
                message = read_message(_read_line)
            except KeyboardInterrupt:
                click.echo("\n(Ctrl-D or /exit leaves)", err=True)
                continue
            if message is None:
                return
            if message.startswith("/"):
                if self._command(message) == "exit":
                    return
            elif message.strip():
                self.answer(message)

    def answer(self, message: str) -> None:
        """One turn. An interrupt keeps what was said; an error takes the turn back and the conversation continues."""
        self.turns.append({"role": "user", "content": message})
        answer = Answer()
        try:
            write_answer(self._llm.chat_stream(self.messages, self._sampling), answer)
            click.echo()
        except KeyboardInterrupt:
            click.echo("\n(stopped)", err=True)
        except PocketLLMError as error:
            click.echo(f"\nError: {error.message}", err=True)
            if isinstance(error, ContextLengthError):
                click.echo("The conversation is too long for the model: /reset starts anew.", err=True)
            answer.text = ""
        if answer.text:
            self.turns.append({"role": "assistant", "content": answer.text})
        else:
            self.turns.pop()

    def _command(self, line: str) -> str:
        word, _, rest = line[1:].strip().partition(" ")
        if word in ("exit", "quit", "bye"):
            return "exit"
        if word == "reset":
            self.turns.clear()
            click.echo("(forgotten)", err=True)
        elif word == "system":
            self.system = rest.strip() or None
            click.echo("(system message set)" if self.system else "(system message removed)", err=True)
        elif word == "help":
            click.echo(_HELP, err=True)
        else:
            click.echo(f"There is no command /{word}: /help lists them.", err=True)
        return word


def read_message(read_line: Callable[[str], str]) -> str | None:
    """One message, which may span lines; None at the end of the input.

    Args:
        read_line: gives the next line without its end, after showing a prompt; raises EOFError at the end.
    """
    try:
        line = read_line("> ")
    except EOFError:
        return None
    if line.startswith(_FENCE):
        return _fenced(line.removeprefix(_FENCE), read_line)
    lines = []
    while line.endswith("\\"):
        lines.append(line[:-1])
        try:
            line = read_line(". ")
        except EOFError:
            line = ""
    return "\n".join([*lines, line])


def _fenced(line: str, read_line: Callable[[str], str]) -> str:
    lines = []
    while not line.rstrip().endswith(_FENCE):
        lines.append(line)
        try:
            line = read_line(". ")
        except EOFError:
            return "\n".join(lines).strip("\n")
    return "\n".join([*lines, line.rstrip().removesuffix(_FENCE)]).strip("\n")


def _read_line(prompt: str) -> str:
    if sys.stdin.isatty():
        return input(prompt)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


def _enable_line_editing() -> None:
    try:
        import readline  # noqa: F401  # input() edits lines once it is imported
    except ImportError:
        return  # some Pythons are built without it; input() still works
