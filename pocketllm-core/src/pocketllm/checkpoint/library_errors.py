"""The ``tokenizers`` library's failures as CheckpointError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pocketllm.errors import CheckpointError


@contextmanager
def as_checkpoint_error(problem: str) -> Iterator[None]:
    """Turn whatever the library raises into ``CheckpointError("{problem} ({its message})")``.

    It raises bare ``Exception`` for every malformed file, and a panic in its Rust code arrives as a class that is not
    an ``Exception``.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        raise CheckpointError(f"{problem} ({str(error)[:500]}).") from error
