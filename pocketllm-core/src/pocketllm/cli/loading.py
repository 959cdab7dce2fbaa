"""Open a model for a command, with a progress bar where somebody watches."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pocketllm.engine_args import EngineArgs

if TYPE_CHECKING:
    from pocketllm.llm import LLM


def open_llm(args: EngineArgs) -> LLM:
    """An open ``LLM``. Loading shows a bar on stderr when that is a terminal, and nothing in a pipe."""
    from pocketllm.llm import LLM

    if not sys.stderr.isatty():
        return LLM(args)
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("loading", total=1.0)

        def show(stage: str, fraction: float) -> None:
            progress.update(task, description=stage, completed=fraction)

        return LLM(args, on_progress=show)
