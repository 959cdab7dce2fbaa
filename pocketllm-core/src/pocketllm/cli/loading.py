"""Open a model for a command, with a progress bar where somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pocketllm.engine_args import EngineArgs

if TYPE_CHECKING:
    from pocketllm.llm import LLM


def open_llm(args: EngineArgs) -> LLM:
    """An open ``LLM``. Loading shows a bar on stderr when that is a terminal, and nothing in a pipe."""
    from pocketllm.llm import LLM

    with loading_bar() as (report, _):
        return LLM(args, on_progress=report)


@contextmanager
def loading_bar() -> Iterator[tuple[Callable[[str, float], None] | None, Callable[[], None]]]:
    """Yields ``report(stage, fraction)``, callable from any thread, and ``stop()``, which takes the bar away.
    The report is None when stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield None, lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("loading", total=1.0)
        yield lambda stage, fraction: progress.update(task, description=stage, completed=fraction), progress.stop
