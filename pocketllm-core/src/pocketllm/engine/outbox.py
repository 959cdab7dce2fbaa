"""The ready-made event source for engines written in Python.

An engine thread posts, one consumer drains. A wake costs a system call, so it is sent only when the consumer has begun
to look: batches posted while it is still busy cost an append.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque

from pocketllm.types import StepBatch

_ONE = (1).to_bytes(8, sys.byteorder)  # an eventfd counts native 64-bit words; a pipe takes any bytes


class Wake:
    """A descriptor that is readable between :meth:`set` and :meth:`clear`. Any thread may set; one clears."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # a close() must not race with a set(), nor the flag differ from the descriptor
        self.is_set = False
        """Whether the descriptor is readable; read without a lock, it spares the system call of a needless call."""
        if hasattr(os, "eventfd"):
            self._read_fd = self._write_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        else:
            self._read_fd, self._write_fd = os.pipe()
            os.set_blocking(self._read_fd, False)
            os.set_blocking(self._write_fd, False)

    def fileno(self) -> int:
        return self._read_fd

    def set(self) -> None:
        with self._lock:
            if self._write_fd >= 0 and not self.is_set:
                self.is_set = True
                os.write(self._write_fd, _ONE)

    def clear(self) -> None:
        with self._lock:
            if self.is_set:
                self.is_set = False
                os.read(self._read_fd, 8)

    def close(self) -> None:
        with self._lock:
            fds = {self._read_fd, self._write_fd} - {-1}
            self._read_fd = self._write_fd = -1
            self.is_set = False
            for fd in fds:
                os.close(fd)


class Outbox:
    """Batches from an engine's threads to core's pump.

    Threads: :meth:`post` from any thread; :meth:`drain` from one thread at a time; :meth:`close` once, after which
    posts are still kept for a last drain but no longer wake anybody.
    """

    def __init__(self) -> None:
        self._batches: deque[StepBatch] = deque()
        self._wake = Wake()

    def fileno(self) -> int:
        return self._wake.fileno()

    def post(self, batch: StepBatch) -> None:
        """Append one batch and wake the consumer unless a wake is already under way."""
        self._batches.append(batch)
        # The consumer clears before it pops, so a batch appended before that is popped and one after it wakes again.
        if not self._wake.is_set:
            self._wake.set()

    def drain(self) -> list[StepBatch]:
        if self._wake.is_set:
            self._wake.clear()
        batches: list[StepBatch] = []
        while self._batches:
            batches.append(self._batches.popleft())
        return batches

    def close(self) -> None:
        self._wake.close()
