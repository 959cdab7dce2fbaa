"""Hosts that nobody closed, closed before the interpreter ends."""

from __future__ import annotations

import atexit
import weakref
from typing import Protocol


class _Closable(Protocol):
    def close(self, deadline_s: float) -> None: ...


# Engines cancel at once and end after the step under way, which on a busy machine takes its time.
DEADLINE_S = 10.0

_open: weakref.WeakSet[_Closable] = weakref.WeakSet()


def close_at_exit(host: _Closable) -> None:
    """Remember ``host``. After the interpreter's end its threads stop where they are: a lock that one holds is never
    given back, and one inside of an engine's native code takes the process down when it comes back."""
    _open.add(host)


@atexit.register
def _close_all() -> None:
    for host in list(_open):
        host.close(DEADLINE_S)
