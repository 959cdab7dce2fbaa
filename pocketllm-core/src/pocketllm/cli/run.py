"""``pocketllm run``: one prompt, one answer, streamed."""

from __future__ import annotations

import sys
from typing import Any

import click

from pocketllm.cli.answer import Answer, write_answer
from pocketllm.cli.engine_options import EngineCommand, engine_args_from_options, engine_options
from pocketllm.cli.loading import open_llm
from pocketllm.cli.sampling_options import sampling_from_options, sampling_options


@click.command(cls=EngineCommand)
@click.argument("prompt", required=False)
@click.option("--prompt", "prompt_option", help="The prompt, instead of the argument.")
@click.option("--system", help="System message in front of the prompt.")
@click.option("--raw", is_flag=True, help="Continue the text itself, without the chat template.")
@click.option("--stats", is_flag=True, help="Also say on stderr how many tokens and how fast.")
@sampling_options
@engine_options
def run(
    prompt: str | None, prompt_option: str | None, system: str | None, raw: bool, stats: bool, **options: Any
) -> None:
    """Answer one PROMPT on the terminal. Without PROMPT, or with -, it is read from a pipe."""
    text = _prompt_text(prompt if prompt is not None else prompt_option)
    if raw and system is not None:
        raise click.UsageError("--raw has no messages, so --system has no place there: leave out one of the two.")
    sampling = sampling_from_options(options)
    args = engine_args_from_options(**options)
    answer = Answer()
    with open_llm(args) as llm:
        if raw:
            events = llm.generate_stream(text, sampling)
        else:
            messages = [{"role": "system", "content": system}] if system is not None else []
            events = llm.chat_stream([*messages, {"role": "user", "content": text}], sampling)
        write_answer(events, answer)
        click.echo()
        if stats:
            click.echo(answer.figures(), err=True)


def _prompt_text(prompt: str | None) -> str:
    if prompt is None and sys.stdin.isatty():
        raise click.UsageError("Give a prompt: pocketllm run 'Why is the sky blue?', or send it through a pipe.")
    text = sys.stdin.read() if prompt in (None, "-") else prompt
    if not text:
        raise click.UsageError("The prompt is empty.")
    return text
