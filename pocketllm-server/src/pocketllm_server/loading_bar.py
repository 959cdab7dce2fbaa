"""Progress of the load on a terminal; nothing where nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def loading_bar() -> Iterator[tuple[Callable[[str, float], None] | None, Callable[[], None]]]:
    """Yields ``report(stage, fraction)``, callable from any thread (None when stderr is no terminal), and ``stop()``,
    which takes the bar away."""
    if not sys.stderr.isatty():
        yield None, lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    task = progress.add_task("loading", total=1.0)
    with progress:
        yield lambda stage, fraction: progress.update(task, description=stage, completed=fraction), progress.stop
