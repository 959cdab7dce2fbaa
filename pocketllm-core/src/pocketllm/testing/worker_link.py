"""The kit's side of the process that holds the engine: start it, run a case under a deadline, kill it."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import IO

from pocketllm.testing import wire
from pocketllm.testing.rules import Violation
from pocketllm.testing.settings import KitSettings
from pocketllm.types import Capabilities

OPEN_DEADLINE_FACTOR = 10
TAIL_BYTES = 4000


class WorkerLink:
    """One engine in one process, started when it is first needed and again after every failure.

    Threads: one.
    """

    def __init__(self, settings: KitSettings) -> None:
        self.settings = settings
        self.capabilities: Capabilities | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._received = b""
        self._output: IO[bytes] | None = None

    def run(self, case_id: str, rule: str) -> tuple[list[Violation], str]:
        """Run one case: its violations, and what helps to understand them (traceback, the process's last output)."""
        if self._process is None:
            opening = self._open()
            if opening is not None:
                return opening
        self._send(wire.Run(case_id))
        answer, reason = self._receive(self.settings.deadline_s)
        if isinstance(answer, wire.Outcome):
            text = answer.traceback
            if answer.violations:
                text += self._tail()
                self.stop()  # the next case starts with an engine that nothing has happened to
            return answer.violations, text
        violation = Violation("L5", f"{reason} in case {case_id}")
        if self._process is not None and self._process.poll() is None:
            violation = Violation(rule, f"the deadline of {self.settings.deadline_s:g} s passed in case {case_id}")
            self._stacks()
        text = self._tail()
        self.stop()
        return [violation], text

    def stop(self) -> None:
        """Kill the process and everything it started; gone without trace when this returns."""
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # ended already
            self._process.wait()
        if self._output is not None:
            self._output.close()
        self._process = self._channel = self._output = None
        self._received = b""

    def _open(self) -> tuple[list[Violation], str] | None:
        ours, theirs = socket.socketpair()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # stop() closes it
        program = [sys.executable, "-m", "pocketllm.testing.worker", str(theirs.fileno())]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with theirs:
            self._process = subprocess.Popen(
                program,
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env=environment,
                start_new_session=True,
            )
        self._channel = ours
        self._send(wire.Open(self.settings))
        answer, reason = self._receive(self.settings.deadline_s * OPEN_DEADLINE_FACTOR)
        if isinstance(answer, wire.Opened):
            self.capabilities = answer.capabilities
            return None
        if isinstance(answer, wire.Outcome):
            violations, text = answer.violations, answer.traceback
        else:
            violations, text = [Violation("L1", f"{reason} while the engine was opened")], ""
        text += self._tail()
        self.stop()
        return violations, text

    def _send(self, message: wire.Asked) -> None:
        if self._channel is not None:
            try:
                self._channel.sendall(wire.encode(message))
            except BrokenPipeError:
                pass  # it has died: the answer that does not come says so

    def _receive(self, timeout_s: float) -> tuple[wire.Answer | None, str]:
        """The next answer, or None and what came instead."""
        if self._channel is None:
            return None, "the process was not started"
        give_up_at = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            left_s = give_up_at - time.monotonic()
            if left_s <= 0 or not select.select([self._channel], [], [], left_s)[0]:
                return None, f"no answer within {timeout_s:g} s"
            try:
                data = self._channel.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                return None, self._death()
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return wire.answer.decode(line), ""

    def _death(self) -> str:
        if self._process is None:
            return "the process was gone"
        code = self._process.wait()
        return f"the process was killed by signal {-code}" if code < 0 else f"the process ended with code {code}"

    def _stacks(self) -> None:
        """Let a stuck process say where it is: faulthandler prints all stacks on SIGABRT."""
        if self._process is not None:
            self._process.send_signal(signal.SIGABRT)
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                pass  # stop() kills it

    def _tail(self) -> str:
        if self._output is None:
            return ""
        self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, self._output.tell() - TAIL_BYTES))
        text = self._output.read().decode(errors="replace").strip()
        return f"\n--- output of the engine's process ---\n{text}" if text else ""
