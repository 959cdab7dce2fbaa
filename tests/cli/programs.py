"""Run ``pocketllm`` as a person does: in a process of its own, through a pipe or on a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

DEADLINE_S = 120.0
"""When a test gives up waiting: generous, since nothing here measures time."""


def environment(site: Path | None = None, **variables: str) -> dict[str, str]:
    """The environment of a child: ours without ``POCKETLLM_*``, with ``site`` on the path, and ``variables``."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("POCKETLLM_")}
    if site is not None:
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(site), environ.get("PYTHONPATH"))))
    return {**environ, **variables}


def pocketllm(
    *args: str, site: Path | None = None, stdin: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run to the end through pipes."""
    return subprocess.run(
        [sys.executable, "-m", "pocketllm", *args],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=environment(site, **variables),
        check=False,
    )


class Terminal:
    """A program on a pseudo-terminal. ``seen`` holds everything that it has shown."""

    def __init__(self, process: subprocess.Popen[bytes], fd: int) -> None:
        self.process = process
        self.seen = ""
        self._fd = fd
        self._mark = 0

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait_for(self, text: str, *, again: str = "") -> None:
        """Read on until ``text`` appears after the last thing waited for.

        ``again`` is typed anew whenever nothing comes for a second: Python notices a Ctrl-C only at the next key when
        it falls between the prompt and the first read.
        """
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.seen[self._mark :]:
            assert time.monotonic() < deadline, f"{text!r} did not appear in {self.seen!r}"
            if again and not select.select([self._fd], [], [], 1.0)[0]:
                self.type(again)
            assert self._read(), f"the program ended without {text!r}: {self.seen!r}"
        self._mark = self.seen.index(text, self._mark) + len(text)

    def wait_for_end(self) -> int:
        """Read what is left and return the exit code."""
        while self._read():
            pass
        return self.process.wait(DEADLINE_S)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._fd], [], [], DEADLINE_S)
        assert ready, f"nothing more came: {self.seen!r}"
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # how Linux reports that the other side of a pseudo-terminal is closed
            return False
        self.seen += data.decode(errors="replace")
        return bool(data)


@contextlib.contextmanager
def on_a_terminal(*args: str, **variables: str) -> Iterator[Terminal]:
    """Run ``pocketllm`` with all three streams on a terminal, as the leader of its foreground process group."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        # setsid and this ioctl make the pseudo-terminal the controlling one, so that Ctrl-C becomes SIGINT.
        [sys.executable, "-c", _TERMINAL_LEADER, *args],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(None, TERM="xterm", **variables),
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
        os.close(ours)


_TERMINAL_LEADER = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from pocketllm.cli import main
sys.exit(main())
"""
