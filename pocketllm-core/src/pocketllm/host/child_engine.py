"""The host's side of an engine in a child process: an Engine whose events come through a pipe."""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import TYPE_CHECKING

from pocketllm.engine.call import GenerateCall
from pocketllm.errors import BackendUnavailableError, ConfigurationError, EngineError, error_named
from pocketllm.hookspecs import LoadReport, hookimpl
from pocketllm.host import frames
from pocketllm.types import Capabilities, Command, EngineStats, StepBatch

if TYPE_CHECKING:
    from pocketllm.engine_args import EngineArgs
    from pocketllm.plugins.discovery import Plugin

logger = logging.getLogger("pocketllm.engine")

# What a pipe holds; see child_process.
MAX_READ_BYTES = 1 << 16
KILL_GRACE_S = 2.0
EXIT_STATUS_WAIT_S = 0.05


class ChildEngine:
    """Spawns the child, loads in it, and speaks frames with it.

    Threads: hook methods from any thread; :meth:`drain` from the pump's thread. Commands go through one writer thread,
    so that a child that does not read never blocks a caller.

    Args:
        control_commands: those of the backend's card; a command that is not among them is unknown.
        aborted: nobody wants the engine any more; asked while it loads.

    Raises (constructor):
        PocketLLMError: what the backend's open raised in the child, as the same class.
        EngineError: the child died or fell silent while loading.
    """

    def __init__(
        self,
        args: EngineArgs,
        plugins: list[Plugin],
        report: LoadReport,
        *,
        load_timeout_s: float,
        hang_timeout_s: float,
        control_commands: Collection[str] = (),
        aborted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._hang_timeout_s = hang_timeout_s
        self._control_commands = frozenset(control_commands)
        self._commands_fd = self._events_fd = self._lifeline_fd = -1
        self._commands: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._reader = frames.FrameReader()
        self._stats = EngineStats()
        self._tickets: dict[int, Future[object]] = {}
        self._ticket_ids = itertools.count(1)
        self._death: str | None = None
        self._death_told = False
        self._closed = threading.Event()
        self._close_asked = False
        self._awaiting_pong_since: float | None = None
        self._spawn()
        self._writer = threading.Thread(target=self._write_commands, name="pocketllm-child-writer", daemon=True)
        self._writer.start()
        self._send(frames.Open(args=args, plugins=plugins, sys_path=sys.path))
        try:
            self._capabilities = self._await_open(report, load_timeout_s, aborted)
        except BaseException:
            self._kill()
            self._release()
            raise

    # -- the hooks ------------------------------------------------------------------------------------------------

    @hookimpl
    def pocketllm_capabilities(self) -> Capabilities:
        return self._capabilities

    @hookimpl
    def pocketllm_generate(self, call: GenerateCall) -> bool:
        if self._death is not None:
            raise BackendUnavailableError(self._death)
        try:
            data = frames.encode(frames.Generate(call.request))
        except (OverflowError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"The request cannot be sent to the engine's process: {error}. Its metadata must be plain data with "
                "integers of at most 64 bits.",
                param="metadata",
            ) from error
        self._commands.put(data)
        return True

    @hookimpl
    def pocketllm_cancel(self, handle: int, reason: str) -> None:
        self._send(frames.Cancel(handle, reason))

    @hookimpl
    def pocketllm_stats(self) -> EngineStats:
        return self._stats

    @hookimpl
    def pocketllm_control(self, command: Command) -> Future[object] | None:
        if command.name not in self._control_commands:
            return None  # as the engine itself would answer, which is a round trip away
        ticket = next(self._ticket_ids)
        pending: Future[object] = Future()
        self._tickets[ticket] = pending
        self._send(frames.Control(ticket, command))
        return pending

    @hookimpl
    def pocketllm_close(self, deadline_s: float) -> None:
        """Ask, wait a little over the deadline, then kill; the pump keeps draining meanwhile."""
        if not self._close_asked:
            self._close_asked = True
            self._send(frames.Close(deadline_s))
            try:
                self.process.wait(timeout=deadline_s + KILL_GRACE_S)
            except subprocess.TimeoutExpired:
                logger.warning("the engine's process %d did not close in time: killing it", self.process.pid)
        self._kill()
        self._fail_tickets("The engine was closed.")
        self._commands.put(None)

    @hookimpl
    def pocketllm_heartbeat(self) -> str | None:
        """Send the next ping, with which the child asks its engine; say when one was not answered for too long."""
        if self._death is not None or self._close_asked:
            return None
        now = time.monotonic()
        if self._awaiting_pong_since is None:
            self._awaiting_pong_since = now
            self._send(frames.Ping())
            return None
        silent_s = now - self._awaiting_pong_since
        if silent_s < self._hang_timeout_s:
            return None
        self.process.kill()
        return f"The engine's process {self.process.pid} did not answer for {silent_s:.0f} s and was killed."

    @property
    def events(self) -> ChildEngine:
        return self

    # -- event source ---------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._events_fd

    def drain(self) -> list[StepBatch]:
        """Batches that have arrived; after the child's death one last batch that says so."""
        batches: list[StepBatch] = []
        while self._events_fd >= 0:
            try:
                data = os.read(self._events_fd, MAX_READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                # A descriptor at its end stays readable and would keep the pump spinning while the host closes.
                os.close(self._events_fd)
                self._events_fd = -1
                self._died()
                break
            for body in self._reader.feed(data):
                self._take(frames.from_child.decode(body), batches)
            if len(data) < MAX_READ_BYTES:
                break  # most likely empty now; a wrong guess costs one more wake
        if self._death is not None and not self._death_told and not self._closed.is_set():
            self._death_told = True
            batches.append(StepBatch(fatal=self._death))
        return batches

    def close(self) -> None:
        """Free the descriptors; the pump must have stopped reading."""
        self._release()

    # -- inside ---------------------------------------------------------------------------------------------------

    def _spawn(self) -> None:
        commands_read, self._commands_fd = os.pipe()
        self._events_fd, events_write = os.pipe()
        lifeline_read, self._lifeline_fd = os.pipe()
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            fcntl.fcntl(self._events_fd, fcntl.F_SETPIPE_SZ, MAX_READ_BYTES)
        inherited = (commands_read, events_write, lifeline_read)
        program = [sys.executable, "-m", "pocketllm.host.child_process", *(str(fd) for fd in inherited)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        try:
            self.process = subprocess.Popen(
                program, pass_fds=inherited, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )
        finally:
            for fd in inherited:
                os.close(fd)
        os.set_blocking(self._events_fd, False)

    def _await_open(self, report: LoadReport, timeout_s: float, aborted: Callable[[], bool]) -> Capabilities:
        give_up_at = time.monotonic() + timeout_s
        poller = select.poll()
        poller.register(self._events_fd, select.POLLIN)
        while True:
            if aborted():
                raise BackendUnavailableError("The engine was closed while it was loading.")
            if time.monotonic() > give_up_at:
                raise EngineError(
                    f"Loading took more than {timeout_s:g} s: raise the load timeout or use a faster disk."
                )
            if not poller.poll(200):
                continue
            data = os.read(self._events_fd, MAX_READ_BYTES)
            if not data:
                self._died()
                raise EngineError(self._death or "The engine's process ended while it was loading.")
            opened: Capabilities | None = None
            for body in self._reader.feed(data):
                frame = frames.from_child.decode(body)
                match frame:
                    case frames.Progress(stage, fraction):
                        report(stage, fraction)
                    case frames.Opened(capabilities):
                        opened = capabilities
                    case frames.OpenFailed():
                        logger.debug("open failed in the child:\n%s", frame.traceback)
                        raise error_named(frame.kind, frame.message, frame.param)
                    case _:
                        self._take(frame, [])
            if opened is not None:
                return opened

    def _take(self, frame: frames.FromChild, batches: list[StepBatch]) -> None:
        self._awaiting_pong_since = None  # anything it says proves that it is alive
        match frame:
            case frames.Batch(batch):
                batches.append(batch)
            case frames.Stats(stats):
                self._stats = stats
            case frames.ControlDone(ticket, known, value, error):
                pending = self._tickets.pop(ticket, None)
                if pending is None:
                    return
                if not known:
                    pending.set_exception(
                        EngineError("The engine does not know this command, though its backend's card names it.")
                    )
                elif error is not None:
                    pending.set_exception(EngineError(error))
                else:
                    pending.set_result(value)
            case frames.Closed():
                self._closed.set()
            case _:
                pass  # Pong, and late Progress

    def _died(self) -> None:
        if self._death is None:
            # The pipe ends a moment before the exit status is there. What retires the engine reaps the process.
            try:
                how = _how_it_ended(self.process.wait(timeout=EXIT_STATUS_WAIT_S))
            except subprocess.TimeoutExpired:
                self.process.kill()
                how = "closed its event pipe and was killed"
            self._death = f"The engine's process {self.process.pid} {how}."
            self._fail_tickets(self._death)

    def _fail_tickets(self, why: str) -> None:
        while self._tickets:
            _, pending = self._tickets.popitem()
            pending.set_exception(EngineError(why))

    def _kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _send(self, frame: frames.ToChild) -> None:
        self._commands.put(frames.encode(frame))

    def _write_commands(self) -> None:
        while (data := self._commands.get()) is not None:
            try:
                frames.write_all(self._commands_fd, data)
            except OSError:
                return  # the child is gone; the event pipe's end says so to everybody

    def _release(self) -> None:
        self._commands.put(None)
        # The writer may still be in a write: the descriptor's number must not be given to another file under it.
        self._writer.join(KILL_GRACE_S)
        fds = (self._commands_fd, self._events_fd, self._lifeline_fd)
        self._commands_fd = self._events_fd = self._lifeline_fd = -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)


def _how_it_ended(code: int) -> str:
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"was killed by {name}"
    return f"exited with code {code}"
