"""Native engines that nobody closed, closed before the interpreter ends."""

from __future__ import annotations

import atexit
import weakref

from pocketllm.errors import EngineError
from pocketllm_cpp import _native

_DEADLINE_S = 1.0

_engines: weakref.WeakSet[_native.Engine] = weakref.WeakSet()


def close_at_exit(engine: _native.Engine) -> None:
    """Afterwards a matcher that a native thread calls in Python would never return."""
    _engines.add(engine)


@atexit.register
def _close_all() -> None:
    for engine in list(_engines):
        try:
            engine.close(_DEADLINE_S)
        except EngineError:
            pass  # it was given back
