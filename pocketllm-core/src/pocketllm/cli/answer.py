"""Write a streamed answer as it comes."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click
import msgspec

from pocketllm.errors import EngineError
from pocketllm.types import FinishReason, TimingMetrics, TokenEvent, Usage


class Answer(msgspec.Struct):
    """What has been written so far; complete once ``finish_reason`` is set."""

    text: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None
    timings: TimingMetrics | None = None

    def figures(self) -> str:
        """Tokens and speed in one line."""
        usage = self.usage or Usage()
        parts = [f"{usage.prompt_tokens} prompt tokens", f"{usage.completion_tokens} answer tokens"]
        seconds = self.timings.decode_seconds if self.timings is not None else None
        if seconds and usage.completion_tokens > 1:
            parts.append(f"{(usage.completion_tokens - 1) / seconds:.1f} tokens/s")
        return ", ".join([*parts, f"finish reason {self.finish_reason}"])


def write_answer(events: Iterator[TokenEvent], answer: Answer) -> None:
    """Write the text of ``events`` to stdout as it arrives and collect it in ``answer``; reasoning goes, dimmed, to a
    terminal's stderr.

    ``answer`` is the caller's, so that what an interrupt leaves of it is not lost. However this ends, the stream is
    closed, which cancels what still runs.

    Raises:
        EngineError: the stream ended in an error.
    """
    try:
        _write_events(events, answer)
    finally:
        close = getattr(events, "close", None)
        if close is not None:
            close()


def _write_events(events: Iterator[TokenEvent], answer: Answer) -> None:
    watched = sys.stderr.isatty()
    reasoning_open = False
    for event in events:
        if event.reasoning_content and watched:
            click.echo(click.style(event.reasoning_content, dim=True), nl=False, err=True)
            reasoning_open = True
        if event.text:
            if reasoning_open:
                click.echo(err=True)
                reasoning_open = False
            answer.text += event.text
            click.echo(event.text, nl=False)
        answer.finish_reason = event.finish_reason or answer.finish_reason
        answer.usage = event.usage or answer.usage
        answer.timings = event.timings or answer.timings
        if event.finish_reason == FinishReason.ERROR:
            raise EngineError(event.error or "The engine failed in the middle of the answer.")
