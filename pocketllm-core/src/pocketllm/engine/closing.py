"""What nobody closed, closed before the interpreter ends: hosts, and engines with threads in native code."""

from __future__ import annotations

import atexit
import weakref
from typing import Protocol


class Closable(Protocol):
    """Something with threads of its own. It can be referred to weakly, and closing it twice is allowed."""

    def close(self, deadline_s: float) -> None: ...


# Engines cancel at once and end after the step under way, which on a busy machine takes its time.
DEADLINE_S = 10.0

_open: weakref.WeakSet[Closable] = weakref.WeakSet()


def close_at_exit(closable: Closable) -> None:
    """Remember ``closable``, without keeping it alive. Any thread.

    After the interpreter's end its threads stop where they are. A lock that one of them holds is never given back, and
    a native thread that calls into Python takes the process down.
    """
    _open.add(closable)


@atexit.register
def _close_all() -> None:
    for closable in list(_open):
        closable.close(DEADLINE_S)
